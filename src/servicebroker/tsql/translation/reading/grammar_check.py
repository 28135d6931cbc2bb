"""Syntax check of a query, a list of values, a condition or a list of sources.

sqlglot accepts more than T-SQL: LIMIT, joins without ON, clauses in any order, CASE without THEN. This reader follows
T-SQL's own grammar, including unsupported clauses. It builds no tree.
"""

from __future__ import annotations

from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.parser.token_reader import TokenReader
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import COMPOUND_OPERATORS, NUMBER, QUOTED, STRING, VARIABLE, WORD, Tokens
from servicebroker.tsql.translation.reading.optimizer_hints import opens_hints

_SIGNS = frozenset("+-~")
_OPERATORS = frozenset("+-*/%&|^")
_COMPARISONS = frozenset(("=", "<", ">", "<=", ">=", "<>", "!=", "!<", "!>"))
_SET_OPERATORS = ("UNION", "EXCEPT", "INTERSECT")
_JOINS = frozenset(("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "OUTER"))
_JOIN_HINTS = ("LOOP", "HASH", "MERGE", "REMOTE", "REDUCE", "REPLICATE", "REDISTRIBUTE")
_RESERVED_FUNCTIONS = frozenset(
    ("LEFT", "RIGHT", "CONVERT", "IDENTITY", "UPDATE", "USER")
)  # reserved words that are also functions
_CASTING_FUNCTIONS = frozenset(("CAST", "TRY_CAST", "PARSE", "TRY_PARSE"))
_CONVERT_FUNCTIONS = frozenset(("CONVERT", "TRY_CONVERT"))
_NUMBERED_OPTIONS = frozenset(("MAXDOP", "MAXRECURSION", "FAST", "QUERYTRACEON"))
_DOCUMENT_MODES = {"XML": ("RAW", "AUTO", "EXPLICIT", "PATH"), "JSON": ("PATH", "AUTO")}
_XML_OPTIONS = ("TYPE", "ROOT", "ELEMENTS", "XMLDATA", "XMLSCHEMA", "BINARY")
_JSON_OPTIONS = ("ROOT", "INCLUDE_NULL_VALUES", "WITHOUT_ARRAY_WRAPPER")
_OTHER_DIALECT_WORDS = ("LIMIT", "MINUS")  # not accepted as aliases, so that text of another dialect fails
NOT_ALIASES = frozenset(("WINDOW", "TABLESAMPLE", "OFFSET", "GO", "WITHIN", "LIMIT", "USING", "MINUS", "NATURAL"))


def check_form(tokens: Tokens, before: str) -> None:
    """Check that tokens can follow the words `before`: nothing, SELECT, SELECT *, SELECT * FROM, SELECT 1 WHERE.

    Raises:
        TsqlError: 102 at the first wrong word.
    """
    form = _GrammarReader(tokens)
    try:
        {
            "": form.query,
            "SELECT": form.items,
            "SELECT *": form.tail,
            "SELECT * FROM": form.sources,
            "SELECT 1 WHERE": form.operation,
        }[before]()
        if form.word:
            form.fail()
    except TsqlError as error:
        error.line = 0  # lines count from the statement; its runner sets the line
        raise


class _GrammarReader(TokenReader):
    """Each method reads the construct that it is named after, or raises error 102."""

    # ------------------------------------------------------------ queries

    def query(self) -> None:
        """Read a query with its common table expressions, ORDER BY, FOR and OPTION."""
        if self.take("WITH"):
            self._common()
        self._term()
        while self.word in _SET_OPERATORS:
            self.at += 1
            self.take("ALL")
            self._term()
        self._end_of_query()

    def _common(self) -> None:
        while True:
            if self.take("XMLNAMESPACES") or self.take("CHANGE_TRACKING_CONTEXT"):
                self.parenthesized()
            else:
                self.identifier()
                if self.word == "(":
                    self._names()
                self.expect("AS", "(")
                self.query()
                self.expect(")")
            if not self.take(","):
                return

    def _term(self) -> None:
        if self.take("("):
            self.query()
            self.expect(")")
        elif self.take("VALUES"):
            self._rows()
        else:
            self.expect("SELECT")
            self._select()

    def _rows(self) -> None:
        while True:
            self.expect("(")
            self._values(")")
            if not self.take(","):
                return

    def _values(self, end: str) -> None:
        """Read a list of values and DEFAULT, and the word that closes it."""
        while True:
            if not self.take("DEFAULT"):
                self.operation()
            if not self.take(","):
                self.expect(end)
                return

    def _select(self) -> None:
        if not self.take("ALL"):
            self.take("DISTINCT")
        if self.take("TOP"):
            self._top()
        self.items()
        if self.take("INTO"):
            self.name()
            if self.take("ON"):
                self.single_name()
        self.tail()

    def _top(self) -> None:
        if self.take("("):
            self._in_parentheses()
        elif self.tokens.kinds[self.at] in (NUMBER, VARIABLE):
            self.at += 1
        else:
            self.fail()
        self.take("PERCENT")
        if self.take("WITH"):
            self.expect("TIES")

    def tail(self) -> None:
        """Read the clauses from FROM to OPTION."""
        if self.take("FROM"):
            self.sources()
        if self.take("WHERE", "CURRENT", "OF"):
            self.take("GLOBAL")
            self._cursor()
        elif self.take("WHERE"):
            self.operation()
        if self.take("GROUP"):
            self.expect("BY")
            self._groups()
        if self.take("HAVING"):
            self.operation()
        if self.word == "WINDOW" and self.peek(2) == "AS":
            self._windows()
        if self.word == "OPTION":
            self._options()

    def _cursor(self) -> None:
        if self.tokens.kinds[self.at] == VARIABLE:
            self.at += 1
        else:
            self.identifier()

    def _end_of_query(self) -> None:
        if self.take("ORDER"):
            self.expect("BY")
            self._order()
            if self.take("OFFSET"):
                self._offset()
        if self.word == "FOR":
            self._rendering()
        if self.word == "OPTION":
            self._options()

    def _offset(self) -> None:
        self.operation()
        self.expect_any("ROW", "ROWS")
        if self.take("FETCH"):
            self.expect_any("FIRST", "NEXT")
            self.operation()
            self.expect_any("ROW", "ROWS")
            self.expect("ONLY")

    def _rendering(self) -> None:
        """Read FOR XML or FOR JSON with their options."""
        self.at += 1
        kind = self.expect_any("XML", "JSON")
        self.expect_any(*_DOCUMENT_MODES[kind])
        if self.word == "(":
            self.parenthesized()
        while self.take(","):
            option = self.expect_any(*(_XML_OPTIONS if kind == "XML" else _JSON_OPTIONS))
            if option == "BINARY":
                self.expect("BASE64")
            if option == "ELEMENTS":
                self.take_any("XSINIL", "ABSENT")
            if self.word == "(":
                self.parenthesized()

    def _options(self) -> None:
        """Read OPTION (...)."""
        self.at += 1
        opening = self.at
        self.parenthesized()
        for index in range(opening, self.at - 1):
            is_first = self.words[index] in ("(", ",")
            following = self.words[index + 1]
            lacks = (
                is_first and following in _NUMBERED_OPTIONS and self.tokens.kinds[index + 2] not in (NUMBER, VARIABLE)
            )
            if lacks or (is_first and following in (")", ",")):
                self.at = index + 1
                self.fail()

    def items(self) -> None:
        """Read the select list."""
        while True:
            self._item()
            if not self.take(","):
                return

    def _item(self) -> None:
        kind = self.tokens.kinds[self.at]
        if self.take("*"):
            return
        if kind == VARIABLE and (self.peek() == "=" or self.peek() in COMPOUND_OPERATORS):
            self.at += 2
            self.operation()
            return
        if (self.is_identifier() or kind == STRING) and self.peek() == "=":
            self.at += 2
            self.operation()
            return
        if self._is_star():
            return
        self.operation()
        is_name = self.is_identifier() and self.word not in _OTHER_DIALECT_WORDS
        if self.take("AS") or self.tokens.kinds[self.at] == STRING or is_name:
            self._alias()

    def _is_star(self) -> bool:
        """Read name.* or database..name.*. Return False, without advancing, if another expression comes."""
        index = self.at
        while self.tokens.kinds[index] in (WORD, QUOTED) and self.words[index + 1] == ".":
            index += 2
            while self.words[index] == ".":
                index += 1
            if self.words[index] == "*":
                self.at = index + 1
                return True
        return False

    def _alias(self) -> None:
        if self.tokens.kinds[self.at] == STRING:
            self.at += 1
        else:
            self.identifier()

    def _groups(self) -> None:
        while True:
            self._group()
            if not self.take(","):
                break
        if self.word == "WITH" and self.peek() in ("CUBE", "ROLLUP"):
            self.at += 2

    def _group(self) -> None:
        """Read an item of GROUP BY: a value, a list, or ROLLUP, CUBE and GROUPING SETS."""
        if self.word in ("ROLLUP", "CUBE") and self.peek() == "(":
            self.at += 1
        elif self.word == "GROUPING" and self.peek() == "SETS":
            self.at += 2
        elif self.word != "(" or self._continues_after_parentheses():
            self.operation()
            return
        self.expect("(")
        if self.take(")"):
            return
        while True:
            self._group()
            if not self.take(","):
                self.expect(")")
                return

    def _continues_after_parentheses(self) -> bool:
        """Check whether the parentheses that open here only begin a value."""
        begin = self.at
        self.parenthesized()
        following, self.at = self.word, begin
        return following not in (",", ")", "", "HAVING", "ORDER", "WITH", "FOR", "OPTION", *_SET_OPERATORS)

    def _order(self) -> None:
        while True:
            self.operation()
            self.take_any("ASC", "DESC")
            if not self.take(","):
                return

    def _windows(self) -> None:
        self.at += 1
        while True:
            self.identifier()
            self.expect("AS", "(")
            self._window()
            if not self.take(","):
                return

    # ------------------------------------------------------------ sources

    def sources(self) -> None:
        """Read the sources after FROM."""
        while True:
            self._joined()
            if not self.take(","):
                return

    def _joined(self) -> None:
        self._source()
        while self.word in _JOINS:
            self._join()
        self._pivots()

    def _join(self) -> None:
        if self.take("CROSS"):
            self.expect_any("JOIN", "APPLY")
            self._source()
            return
        if self.take("OUTER"):
            self.expect("APPLY")
            self._source()
            return
        if not self.take("INNER") and self.take_any("LEFT", "RIGHT", "FULL"):
            self.take("OUTER")
        self.take_any(*_JOIN_HINTS)
        self.expect("JOIN")
        self._joined()
        self.expect("ON")
        self.operation()

    def _source(self) -> None:
        if self.take("("):
            self._derived()
        elif self.take("{", "OJ"):
            self._joined()
            self.expect("}")
        elif self.tokens.kinds[self.at] == VARIABLE:
            self.at += 1
            self._methods()
            self._named()
        else:
            if not self.is_identifier():
                self.fail()
            self.name()
            if self.word == "(" and not self._are_hints():
                self._arguments("")
                self._methods()
                if self.word == "WITH" and self.peek() == "(":
                    self.at += 1
                    self.parenthesized()
            self._named()
        self._pivots()

    def _derived(self) -> None:
        if self.word in ("INSERT", "UPDATE", "DELETE", "MERGE"):
            self.refuse(f"{self.word} inside of FROM", "Write OUTPUT ... INTO a table variable, and select from that.")
        if self.word in ("SELECT", "VALUES", "WITH") or (self.word == "(" and self._begins_query()):
            self.query()
            self.expect(")")
            self.take("AS")
            self.identifier()
            if self.word == "(":
                self._names()
            return
        self._joined()
        self.expect(")")

    def _are_hints(self) -> bool:
        """Check whether hints open here without WITH."""
        return opens_hints(self.words, self.at) or (self.word == "(" and self.peek() == "INDEX")

    def _named(self) -> None:
        """Read alias, column names and hints of a source."""
        if self._are_hints():
            self.parenthesized()
            self._name_of_source()
            return
        self._name_of_source()
        if self.word == "(":
            self.parenthesized()
        if self.take("TABLESAMPLE"):
            self.take("SYSTEM")
            self.parenthesized()
            if self.take("REPEATABLE"):
                self.parenthesized()
        if self.word == "WITH" and self.peek() == "(":
            self.at += 1
            self.parenthesized()
        else:
            self.take("HOLDLOCK")

    def _name_of_source(self) -> None:
        if self.take("AS"):
            self.identifier()
        elif self.is_identifier() and self.word not in NOT_ALIASES:
            self.at += 1

    def _pivots(self) -> None:
        while keyword := self.take_any("PIVOT", "UNPIVOT"):
            self.expect("(")
            if keyword == "PIVOT":
                self.operation()
            else:
                self.identifier()
            self.expect("FOR")
            self.name()
            self.expect("IN")
            self._names()
            self.expect(")")
            self.take("AS")
            self.identifier()

    def _names(self) -> None:
        self.expect("(")
        while True:
            self.single_name()
            if not self.take(","):
                self.expect(")")
                return

    # ------------------------------------------------------------ values and conditions

    def operation(self) -> None:
        """Read values and conditions with their operators. The translation tells values from conditions."""
        betweens = 0
        is_list = False  # IN was read
        while True:
            while self.word in _SIGNS or self.word == "NOT":
                self.at += 1
            self._list() if is_list else self._operand()
            is_list = False
            while self.take("COLLATE"):
                self.single_name()
            if self.take("{", "ESCAPE"):
                self.string()
                self.expect("}")
            while self.take("IS"):
                self.take("NOT")
                if self.take("DISTINCT"):
                    self.expect("FROM")
                    self._operand()
                else:
                    self.expect("NULL")
            word = self.word
            if word == "AND" and betweens:
                betweens -= 1
                self.at += 1
            elif word in ("AND", "OR"):
                if betweens:
                    self.fail()
                self.at += 1
            elif word in _OPERATORS or word in _COMPARISONS:
                self._operator(word)
                if word in _COMPARISONS and self.word in ("ALL", "ANY", "SOME"):
                    self.at += 1
                    if self.word != "(":
                        self.fail()
            elif word == "AT" and self.peek() == "TIME":  # a lone AT is an alias
                self.expect("AT", "TIME", "ZONE")
            else:
                if word == "NOT":
                    self.at += 1
                    word = self.expect_any("LIKE", "IN", "BETWEEN")
                elif word in ("LIKE", "IN", "BETWEEN", "ESCAPE"):
                    self.at += 1
                else:
                    if betweens:
                        self.fail()
                    return
                betweens += word == "BETWEEN"
                is_list = word == "IN"
                if is_list and self.word != "(":
                    self.fail()

    def _operator(self, word: str) -> None:
        """Read a sign, or one of the adjacent pairs ||, << and >>."""
        self.at += 1
        if (
            word in ("|", "<", ">")
            and self.word == word
            and self.tokens.starts[self.at] == self.tokens.ends[self.at - 1]
        ):
            self.at += 1

    def _operand(self) -> None:
        kind, word = self.tokens.kinds[self.at], self.word
        if kind in (NUMBER, STRING):
            self.at += 1
        elif kind == VARIABLE:
            self.at += 1
            self._methods()
        elif word == "NULL":
            self.at += 1
        elif word == "(":
            self.at += 1
            self._in_parentheses()
            self._methods()
        elif word == "CASE":
            self._case()
        elif word == "EXISTS":
            self.at += 1
            self.expect("(")
            self.query()
            self.expect(")")
        elif word == "{":
            self._escape()
        elif word == "NEXT" and self.peek() == "VALUE" and self.peek(2) == "FOR":
            self.at += 3
            self.name()
            self._over()
        elif kind in (WORD, QUOTED):
            self._column_or_call()
        elif word == "$":  # $action, $PARTITION.f(x), or an empty money literal
            self.at += 1
            if self.tokens.kinds[self.at] == WORD:
                self.single_name()
                self._methods()
        else:
            self.fail()

    def _in_parentheses(self) -> None:
        """Read a query or a value, and the closing parenthesis."""
        if self._begins_query():
            self.query()
        else:
            self.operation()
        self.expect(")")

    def _list(self) -> None:
        """Read (query) or (value, ...)."""
        self.at += 1
        if not self._begins_query():
            self.operation()
            while self.take(","):
                self.operation()
            self.expect(")")
        else:
            self._in_parentheses()

    def _begins_query(self) -> bool:
        """Check whether a query comes next, within any number of parentheses. (query) + 1 is not a query."""
        index = self.at
        while self.words[index] == "(":
            index += 1
        if self.words[index] not in ("SELECT", "WITH"):
            return False
        depth = around = index - self.at
        while around:
            word = self.words[index]
            if word == "":
                self.at = index
                self.fail()
            depth += (word == "(") - (word == ")")
            index += 1
            if depth < around:
                around = depth
                if self.words[index] not in (")", *_SET_OPERATORS):
                    return False
        return True

    def _case(self) -> None:
        self.at += 1
        if self.word != "WHEN":
            self.operation()
        if self.word != "WHEN":
            self.fail()
        while self.take("WHEN"):
            self.operation()
            self.expect("THEN")
            self.operation()
        if self.take("ELSE"):
            self.operation()
        self.expect("END")

    def _escape(self) -> None:
        """Read {fn NOW()}, {d '2020-01-01'} and the like."""
        self.at += 1
        if self.take_any("D", "T", "TS", "GUID"):
            self.string()
        else:
            self.expect("FN")
            word = self.word
            if self.tokens.kinds[self.at] == WORD and self.peek() == "(":
                self.at += 1
                self._arguments(word if word == "EXTRACT" else "")
            else:
                self.operation()
        self.expect("}")

    def _column_or_call(self) -> None:
        word = self.word
        if self.tokens.kinds[self.at] == WORD and word in RESERVED and word not in _RESERVED_FUNCTIONS:
            self.fail()
        if word in _RESERVED_FUNCTIONS and word != "USER" and self.peek() != "(":
            self.fail()
        self.at += 1
        if self.word == "(":
            self._arguments(word)
            self._after_call()
        self._methods()

    def _methods(self) -> None:
        """Read .name, .name(...) and so on."""
        while self.take("."):
            while self.take("."):
                pass
            self.take("$")
            if self.tokens.kinds[self.at] not in (WORD, QUOTED):
                self.fail()
            self.at += 1
            if self.word == "(":
                self._arguments("")
                self._after_call()

    def _after_call(self) -> None:
        """Read WITHIN GROUP, IGNORE NULLS and OVER after a function call."""
        if self.word == "WITHIN" and self.peek() == "GROUP":
            self.at += 2
            self.expect("(", "ORDER", "BY")
            self._order()
            self.expect(")")
        if self.word in ("IGNORE", "RESPECT") and self.peek() == "NULLS":
            self.at += 2
        self._over()

    def _over(self) -> None:
        if not self.take("OVER"):
            return
        if self.take("("):
            self._window()
        else:
            self.identifier()

    def _window(self) -> None:
        """Read the inside of OVER (...), and the closing parenthesis."""
        if self.is_identifier() and self.word not in ("PARTITION", "ROWS", "RANGE"):
            self.at += 1
        if self.take("PARTITION"):
            self.expect("BY")
            self.operation()
            while self.take(","):
                self.operation()
        if self.take("ORDER"):
            self.expect("BY")
            self._order()
        if self.take_any("ROWS", "RANGE"):
            if self.take("BETWEEN"):
                self._bound()
                self.expect("AND")
            self._bound()
        self.expect(")")

    def _bound(self) -> None:
        if self.take("CURRENT"):
            self.expect("ROW")
            return
        if not self.take("UNBOUNDED"):
            self.integer()
        self.expect_any("PRECEDING", "FOLLOWING")

    def _arguments(self, function: str) -> None:
        self.expect("(")
        if self.take(")"):
            return
        if function in _CONVERT_FUNCTIONS:
            self.type_name()
            if self.word != ",":
                self.fail()
            self.at += 1
        elif function == "TRIM":
            self.take_any("LEADING", "TRAILING", "BOTH")
        while True:
            if not self.take("*") and not (
                function == "" and self.take("DEFAULT")
            ):  # only user-defined functions take it
                if self.word in ("DISTINCT", "ALL"):
                    self.at += 1
                self.operation()
                self._after_argument(function)
            if not self.take(","):
                self.expect(")")
                return

    def _after_argument(self, function: str) -> None:
        """Read the words after an argument of functions with their own grammar."""
        if function in _CASTING_FUNCTIONS:
            self.expect("AS")
            self.type_name()
            if self.take("USING"):
                self.operation()
            return
        if self.take(":") or (function in ("TRIM", "EXTRACT") and self.take("FROM")):
            self.operation()
        if self.take("ORDER"):
            self.expect("BY")
            self._order()
        if self.take_any("NULL", "ABSENT"):
            self.expect("ON", "NULL")
        if self.take("RETURNING"):
            self.type_name()
