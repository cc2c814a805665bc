// Calls of an application with a JavaScript client, each answer on a line: node calls.js PACKAGE URL INDEX
const { createRequire } = require("module");
const [, , name, node, index] = process.argv;
const { Client } = createRequire(`${process.cwd()}/`)(name);

const client = new Client({ node, compression: true });
const elastic = name.startsWith("@elastic");
const request = (where, body) => (elastic ? { ...where, ...body } : { ...where, body });
const body = (answer) => (elastic ? answer : answer.body);
const query = { match: { text: "cat" } };
const documents = ["a cat", "a dog", "the cat and the dog"].map((text, number) => ({ text, number }));

const calls = {
  info: () => client.info(),
  ping: () => client.ping(),
  create: () => client.indices.create(request({ index }, { mappings: { properties: { text: { type: "text" } } } })),
  exists: () => client.indices.exists({ index }),
  bulk: async () => {
    const onDocument = ({ number }) => ({ index: { _index: index, _id: String(number) } });
    const { total, failed } = await client.helpers.bulk({ datasource: documents, onDocument, refresh: true });
    return { body: { total, failed }, total, failed };
  },
  get: () => client.get({ index, id: "1" }),
  missing: () => client.get({ index, id: "none" }),
  update: () => client.update(request({ index, id: "1", refresh: true }, { doc: { number: 7 } })),
  count: () => client.count(request({ index }, { query })),
  search: () => client.search(request({ index }, { query, aggs: { most: { max: { field: "number" } } } })),
  msearch: () => client.msearch(request({}, elastic ? { searches: [{ index }, { query }] } : [{ index }, { query }])),
  scroll: async () => {
    const found = [];
    for await (const page of client.helpers.scrollSearch(request({ index, size: 1 }, { query }))) {
      found.push(...page.documents);
    }
    return { body: found, found };
  },
  refused: () => client.search(request({ index }, { query: { nothing: {} } })),
  section: () => client.search(request({ index }, { query, rescore: { ttc: { method: "spectral" } } })),
  delete: () => client.indices.delete({ index }),
};

(async () => {
  for (const [call, run] of Object.entries(calls)) {
    const answer = await run().then(body, (error) => ({ error: error.meta?.body, status: error.statusCode ?? error.name }));
    console.log(JSON.stringify({ call, answer }));
  }
})();
