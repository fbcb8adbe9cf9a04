error: tickets: no such folder; give one that holds corpus.jsonl, queries.jsonl and qrels/<split>.tsv (each may end in .gz)
