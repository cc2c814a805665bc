package esttc.lucene;

import esttc.core.Candidate;
import esttc.core.FeatureSource;
import esttc.core.TokenBlob;

import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.DocValuesType;
import org.apache.lucene.index.FieldInfo;
import org.apache.lucene.index.FloatVectorValues;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.KnnVectorValues;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.ReaderUtil;
import org.apache.lucene.index.SortedSetDocValues;
import org.apache.lucene.index.StoredFieldVisitor;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.store.ByteArrayDataInput;
import org.apache.lucene.util.BytesRef;

import java.io.IOException;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** What a shard's documents carry for es-ttc: hashes from doc values, blobs from doc values or stored fields, nested vectors. */
final class ShardFeatures implements FeatureSource {
    private static final String HASH = "ttc.hash";
    private static final String ENCODER = "ttc.encoder";
    private static final String ROOTS = "_primary_term"; // nested documents have none
    private static final int NEAREST_ROOTS = 512;

    private final IndexReader reader;
    private final ScoreDoc[] hits;
    private final Map<String, Integer> docs = new HashMap<>();

    ShardFeatures(IndexReader reader, ScoreDoc[] hits) {
        this.reader = reader;
        this.hits = hits;
    }

    /** The hits as candidates, in their order. */
    List<Candidate> candidates(String index) throws IOException {
        Candidate[] found = new Candidate[hits.length];
        Integer[] byDoc = new Integer[hits.length];
        Arrays.setAll(byDoc, place -> place);
        Arrays.sort(byDoc, Comparator.comparingInt(place -> hits[place].doc)); // doc values are read forwards only
        LeafReaderContext leaf = null;
        SortedSetDocValues hashes = null;
        SortedSetDocValues encoders = null;
        for (int place : byDoc) {
            int doc = hits[place].doc;
            LeafReaderContext own = leafOf(doc);
            if (own != leaf) {
                leaf = own;
                hashes = keywords(leaf, HASH);
                encoders = keywords(leaf, ENCODER);
            }
            String hash = first(hashes, doc - leaf.docBase);
            String encoder = first(encoders, doc - leaf.docBase);
            found[place] = new Candidate(encoder == null ? null : hash, encoder, hits[place].score, index);
            if (hash != null) {
                docs.putIfAbsent(hash, doc);
            }
        }
        return Arrays.asList(found);
    }

    @Override
    public Map<String, Map<String, byte[]>> read(List<String> hashes, List<String> fields, Budget budget) throws IOException {
        Map<String, Map<String, byte[]>> found = new LinkedHashMap<>();
        for (String hash : hashes) {
            Integer doc = docs.get(hash);
            if (doc == null) {
                found.put(hash, Map.of()); // nobody asked for it
            } else if (hash.endsWith(TokenBlob.MARK)) {
                found.put(hash, withTokens(doc, fields, budget));
            } else {
                found.put(hash, fromDocValues(doc, fields, budget));
            }
        }
        return found;
    }

    private LeafReaderContext leafOf(int doc) {
        return reader.leaves().get(ReaderUtil.subIndex(doc, reader.leaves()));
    }

    private Map<String, byte[]> fromDocValues(int doc, List<String> fields, Budget budget) throws IOException {
        Map<String, byte[]> blobs = new HashMap<>();
        LeafReaderContext leaf = leafOf(doc);
        for (String field : fields) {
            if (!has(leaf, field, DocValuesType.BINARY)) {
                continue;
            }
            BinaryDocValues values = DocValues.getBinary(leaf.reader(), field);
            if (values.advanceExact(doc - leaf.docBase)) {
                BytesRef value = values.binaryValue();
                budget.take(value.length);
                blobs.put(field, unwrapped(value));
            }
        }
        return blobs;
    }

    private Map<String, byte[]> fromStoredFields(int doc, List<String> fields, Budget budget) throws IOException {
        Map<String, byte[]> blobs = new HashMap<>();
        Set<String> wanted = Set.copyOf(fields);
        LeafReaderContext leaf = leafOf(doc);
        leaf.reader().storedFields().document(doc - leaf.docBase, new StoredFieldVisitor() {
            @Override
            public Status needsField(FieldInfo field) {
                return wanted.contains(field.name) ? Status.YES : blobs.size() == wanted.size() ? Status.STOP : Status.NO;
            }

            @Override
            public void binaryField(FieldInfo field, byte[] value) {
                budget.take(value.length);
                blobs.putIfAbsent(field.name, value);
            }
        });
        return blobs;
    }

    /** Blobs from stored fields, and one of the token vectors, which are those of the document's nested ones. */
    private Map<String, byte[]> withTokens(int doc, List<String> fields, Budget budget) throws IOException {
        Map<String, byte[]> blobs = fromStoredFields(doc, fields.stream().filter(name -> !name.equals(TokenBlob.FIELD)).toList(), budget);
        LeafReaderContext leaf = leafOf(doc);
        FloatVectorValues vectors = leaf.reader().getFloatVectorValues(TokenBlob.VECTOR);
        if (vectors == null || !fields.contains(TokenBlob.FIELD)) {
            return blobs;
        }
        int root = doc - leaf.docBase;
        TokenBlob tokens = new TokenBlob();
        KnnVectorValues.DocIndexIterator nested = vectors.iterator();
        for (int one = nested.advance(firstNested(leaf, root)); one < root; one = nested.nextDoc()) {
            tokens.add(vectors.vectorValue(nested.index()));
        }
        byte[] blob = tokens.bytes();
        if (blob != null) {
            budget.take(blob.length);
            blobs.put(TokenBlob.FIELD, blob);
        }
        return blobs;
    }

    /** Nested documents stand before their root and after the root before it, which is looked for in growing steps. */
    private static int firstNested(LeafReaderContext leaf, int root) throws IOException {
        for (long reach = NEAREST_ROOTS;; reach *= 8) {
            int start = (int) Math.max(0, root - reach);
            NumericDocValues roots = DocValues.getNumeric(leaf.reader(), ROOTS);
            int before = -1;
            for (int one = roots.advance(start); one < root; one = roots.nextDoc()) {
                before = one;
            }
            if (before >= 0 || start == 0) {
                return before + 1;
            }
        }
    }

    private static SortedSetDocValues keywords(LeafReaderContext leaf, String field) throws IOException {
        boolean readable = has(leaf, field, DocValuesType.SORTED_SET) || has(leaf, field, DocValuesType.SORTED);
        return readable ? DocValues.getSortedSet(leaf.reader(), field) : DocValues.emptySortedSet();
    }

    /** Whether a field is as es-ttc maps it; an index of someone else may have one of the same name. */
    private static boolean has(LeafReaderContext leaf, String field, DocValuesType type) {
        FieldInfo info = leaf.reader().getFieldInfos().fieldInfo(field);
        return info != null && info.getDocValuesType() == type;
    }

    private static String first(SortedSetDocValues values, int doc) throws IOException {
        return values.advanceExact(doc) ? values.lookupOrd(values.nextOrd()).utf8ToString() : null;
    }

    /** A binary field's doc value is a number of values and each with its length before it; ours have one. */
    private static byte[] unwrapped(BytesRef value) {
        ByteArrayDataInput in = new ByteArrayDataInput(value.bytes, value.offset, value.length);
        in.readVInt();
        byte[] blob = new byte[Math.min(in.readVInt(), value.length)];
        in.readBytes(blob, 0, blob.length);
        return blob;
    }
}
