"""XML and JSON: creation, queries and changes of documents.

**The problem.** A document is stored as text. XQuery must work on it without an XML library in PostgreSQL.

**The flow.** FOR XML (`for_xml.py`) and FOR JSON (`for_json.py`) concatenate text. OPENJSON is in `json_tables.py`. The
methods of xml (`xml_methods.py`, modify() in `xml_changes.py`) parse their XQuery (`xquery_parser.py`). A plain path
becomes a jsonpath (`xml_paths.py`), any other expression SQL that computes a jsonb array (`xquery.py`). Both work on
the tree that tsql.xml_tree makes of the text.

**The tree.** A node is a jsonb object with one-letter keys:

* `k` is the kind: d document, e element, t text, c comment, i processing instruction.
* `n` is the name as `{uri}local`, `a` the attributes by `@name`, `c` the children.
* `v` is the text of a node without child elements.
* `i` is the position among sibling elements, `p` the position among siblings of the same name, or among texts.

Begin with `xml_methods.py`, then `xml_paths.py`.
"""
