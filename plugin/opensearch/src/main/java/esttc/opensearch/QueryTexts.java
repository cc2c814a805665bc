package esttc.opensearch;

import org.apache.lucene.search.BooleanClause;
import org.opensearch.index.query.MatchBoolPrefixQueryBuilder;
import org.opensearch.index.query.MatchPhrasePrefixQueryBuilder;
import org.opensearch.index.query.MatchPhraseQueryBuilder;
import org.opensearch.index.query.MatchQueryBuilder;
import org.opensearch.index.query.MultiMatchQueryBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilderVisitor;
import org.opensearch.index.query.QueryStringQueryBuilder;
import org.opensearch.index.query.SimpleQueryStringBuilder;

import java.util.LinkedHashSet;
import java.util.Set;

/** The texts that a query ranks by, so that a request need not say its text twice; filters say nothing of rank. */
final class QueryTexts implements QueryBuilderVisitor {
    private final Set<String> texts = new LinkedHashSet<>();

    private QueryTexts() {}

    static Set<String> of(QueryBuilder query) {
        QueryTexts found = new QueryTexts();
        if (query != null) {
            query.visit(found);
        }
        return found.texts;
    }

    @Override
    public void accept(QueryBuilder query) {
        Object text = switch (query) {
            case MatchQueryBuilder match -> match.value();
            case MatchPhraseQueryBuilder match -> match.value();
            case MatchPhrasePrefixQueryBuilder match -> match.value();
            case MatchBoolPrefixQueryBuilder match -> match.value();
            case MultiMatchQueryBuilder match -> match.value();
            case QueryStringQueryBuilder match -> match.queryString();
            case SimpleQueryStringBuilder match -> match.value();
            default -> null;
        };
        if (text instanceof String found && !found.isBlank()) {
            texts.add(found);
        }
    }

    @Override
    public QueryBuilderVisitor getChildVisitor(BooleanClause.Occur occur) {
        boolean ranks = occur == BooleanClause.Occur.MUST || occur == BooleanClause.Occur.SHOULD;
        return ranks ? this : QueryBuilderVisitor.NO_OP_VISITOR;
    }
}
