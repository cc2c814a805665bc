/** Types of what the page's parts share; `tsc` checks the page by them, browsers never get this file. */

/** A view, and what it shows: `#/search?index=articles&q=cats`. */
interface Route {
  view: string;
  params: URLSearchParams;
}

/** What the gateway says of itself at `/_ttc/`. */
interface Info {
  methods: string[];
  rewriters: string[];
  version: string;
  engine: { product: string | null; version?: string };
  on_demand: OnDemandStatus;
}

/** Encoding on demand: documents of indices and those that are encoded, recent windows and the complete ones. */
interface OnDemandStatus {
  queue: number;
  windows: number;
  complete_windows: number;
  index_documents: number;
  encoded_documents: number;
}

/** A field of a mapping; `counted` is the name by which its values can be counted. */
interface IndexField {
  name: string;
  kind: string;
  counted?: string;
}

/** An index: its text fields, all its fields, and whether its tokens have vectors. */
interface IndexInfo {
  name: string;
  fields: string[];
  /** How many of the fields, from the first, are titles. */
  titles: number;
  others: IndexField[];
  tokens: boolean;
}

/** The values that a field may have, or the bounds of its range. */
type Filters = Record<string, string[] | Record<string, number>>;

/** A field that searches can be filtered by, what its documents have, as numbers of documents or bounds. */
interface Facet {
  name: string;
  field: string;
  kind: string;
  buckets: { key: unknown; key_as_string?: string; doc_count: number }[];
  min: number;
  max: number;
}

/** The value of the `Authorization` header, and the gateway's own token; each may be empty. */
interface Credentials {
  authorization: string;
  token: string;
}

/** Credentials are asked for: by the gateway itself or by the engine, and whether wrong ones were given before. */
interface Asking {
  gateway: boolean;
  again: boolean;
  answer: (given: Partial<Credentials> | null) => void;
}

/** A method with its parameters, and the same as it is typed into a form. */
interface Column {
  method: string;
  params: Record<string, unknown>;
}
interface Draft {
  method: string;
  params: string;
}

/** What is searched for. */
interface Query {
  index: IndexInfo;
  text: string;
  size: number;
  filters: Filters;
  show: string[];
}

/** A hit with its rank in its column and in the one on the left. */
interface Ranked {
  hit: Hit;
  rank: number;
  before: number | undefined;
}

/** What a search found: the body that was sent, the response, and milliseconds until it was here. */
interface Found {
  request: any;
  response: SearchResponse;
  ms: number;
}

/** What a dialog is open about: a hit, why a document is not there, or else the request. */
interface Opened {
  found: Found;
  hit?: Hit;
  why?: boolean;
}

/** Why a document is where it is, or is not found: its ranks, and sentences. */
interface Why {
  id: string;
  reasons: string[];
  rank: number | null;
  found: number;
  first_pass_rank: number | null;
  signals: Record<string, { rank: number | null }>;
}

/** A column on the left of another: its method, and the ranks of its hits by key. */
interface LeftColumn {
  method: string;
  ranks: Map<string, number>;
}

/** The answer to a search, or why there is none. */
interface Answer {
  found: Found | null;
  error: string;
}

interface SearchResponse {
  took: number;
  timed_out: boolean;
  hits: { hits: Hit[] };
  ttc?: {
    applied?: boolean;
    reason?: string;
    took?: Record<string, number>;
    queued?: number;
    passages?: { reason?: string };
    candidates?: { reason?: string };
    map?: { reason?: string };
    expansion?: Expansion[];
    query?: { expansion?: Expansion[] };
    strategy?: Walk;
  };
}

interface Hit {
  _index: string;
  _id: string;
  _score: number | null;
  _source?: Source;
  highlight?: Record<string, string[]>;
  _ttc?: Detail;
}

type Source = Record<string, unknown>;

/** What a method tells of a hit. */
interface Detail {
  first_pass_rank?: number | null;
  first_pass_score?: number | null;
  stale?: boolean;
  skipped?: string;
  passages?: Passage[];
  map?: EvidenceMap;
  signals?: Record<string, { score?: number | null; share?: number }>;
  matched?: string[];
  coefficient?: number;
  relevance?: number;
  l1?: number;
  redundant_with?: { id: string; contribution: number }[];
}

/** A stretch of a field's text, in code points. */
interface Passage {
  field: string;
  start: number;
  end: number;
  score: number;
}

/** A word or phrase that a rewriter added to the query, and how many documents have it. */
interface Expansion {
  term: string;
  documents?: number;
}

/** Cosines of a hit's tokens with the query, by scale and by token of the query. */
interface EvidenceMap {
  fields: string[];
  tokens: { field: number[]; start: number[]; end: number[] };
  tokens_per_cell: number;
  spectral?: Cosines & { scales: (number | "mean")[] };
  late?: Cosines & { query_tokens: (string | null)[] };
}

/** A matrix as bytes in base64; `elsewhere` has each row's greatest at a special token. */
interface Cosines {
  low: number;
  high: number;
  values: string;
  elsewhere?: number[];
}

/** What a row of cosines is of: a scale or a token of the query. */
interface EvidenceName {
  name: Child;
  label: string;
  about: string;
  special?: boolean;
}

/** Its cosine with each token of the text, and the greatest with a special token. */
interface EvidenceRow extends EvidenceName {
  cosines: number[];
  greatest: number;
  elsewhere: number;
}

/** Text whose cosine is not above `pale` is left white: half of all are below it. */
interface EvidencePart {
  title: string;
  rows: EvidenceRow[];
  high: number;
  pale: number;
  everything: string;
}

/** The order in which documents were judged; `from` is the one whose neighbour a document is. */
interface Walk {
  reranker: string;
  calls?: { _id: string; from?: string; score?: number }[];
}

/** Where a hit stands in a column. */
interface MovePlace {
  left: number;
  right: number;
  y: number;
  rank: number;
}

/** A line between the places of a hit in two columns. */
interface MoveLine {
  key: string;
  path: string;
  move: string;
}

/** A query and its pool; `by` counts grades by judge. */
interface Pooled {
  id: string;
  text: string;
  methods: string[];
  pooled: number;
  by: Record<string, number>;
}

/** The judgements of an index. */
interface Overview {
  queries: Pooled[];
}

/** A document of a pool; without a source it is gone from the index. */
interface Judged {
  id: string;
  grade: number | null;
  source: Source | null;
}

/** How the pooled methods stand, and which weights of blend tuning would choose; ids of records that are left out. */
interface Stands {
  unreadable: string[];
  judged_queries: number;
  clear: boolean;
  methods: { method: string; "ndcg@10": number; low: number; high: number; "unjudged@10": number }[];
  tuned: { weights: Record<string, number> | null; gain: number; low: number; high: number; clear: boolean } | null;
  why: string;
}

/** What a component shows. */
type Child = import("preact").ComponentChildren;
