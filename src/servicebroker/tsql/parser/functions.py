"""Parser of CREATE FUNCTION."""

from __future__ import annotations

from servicebroker.tsql.parser.labels import check_labels
from servicebroker.tsql.parser.procedures import ProcedureParser
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import DeclareTable, Function, Return, Statement
from servicebroker.tsql.tokens import VARIABLE, find_closing


class FunctionParser(ProcedureParser):
    """Parses user-defined functions. Each needs a batch of its own."""

    def create_function(self, line: int, action: str, begin: int) -> Statement:
        """CREATE [OR ALTER] FUNCTION name (parameters) RETURNS type or TABLE, up to the end of the batch."""
        self.must_be_first("CREATE FUNCTION", begin)
        name = self.name()
        if name.database:
            raise TsqlError(
                166, "'CREATE FUNCTION' does not allow specifying the database name as a prefix to the object name.",
                severity=15, line=line,
            )  # fmt: skip
        if self.word != "(":
            self.fail()
        parameters = self.parameters()
        if any(parameter.output for parameter in parameters):
            self.refuse("An OUTPUT parameter of a function", "Write a procedure.")
        if any(parameter.read_only for parameter in parameters):
            self.refuse("A table-valued parameter of a function", "Write a procedure.")
        self.expect("RETURNS")
        table = self._table_returned()
        if self.take("TABLE"):
            if self.word == "(":
                self.refuse("A .NET function (EXTERNAL NAME)", "Write it in T-SQL.")
            self._function_options()
            self.take("AS")
            self.expect("RETURN")
            query = self._whole_query()
            return Function(line, action, name, parameters, None, query, None, (), False, self.slice(begin, self.at))
        returns = None if table else self.type_name()
        is_strict = self._function_options()
        self.take("AS")
        if self.word == "EXTERNAL":
            self.refuse("A .NET function (EXTERNAL NAME)", "Write it in T-SQL.")
        self.expect("BEGIN")
        self.returns_value = True
        body = self.statements("END")
        self.expect("END")
        self.take(";")
        if self.word:
            self.fail()
        if not body or not isinstance(body[-1], Return):
            raise TsqlError(
                455, "The last statement included within a function must be a return statement.", line=self.line
            )
        check_labels(body)
        return Function(line, action, name, parameters, returns, "", table, body, is_strict, self.slice(begin, self.at))

    def _table_returned(self) -> DeclareTable | None:
        """Parse @name TABLE (columns), if it comes next."""
        if self.tokens.kinds[self.at] != VARIABLE:
            return None
        line, name = self.line, self.declared_name()
        self.expect("TABLE")
        return DeclareTable(line, name, self.parenthesized())

    def _whole_query(self) -> str:
        """Return the rest of the batch as text, without enclosing parentheses."""
        begin, end = self.at, len(self.tokens.words) - 1
        while end > begin and self.tokens.words[end - 1] == ";":
            end -= 1
        if end == begin:
            self.fail()
        self.at = end
        if self.tokens.words[begin] == "(" and find_closing(self.tokens.words, begin) == end - 1:
            begin, end = begin + 1, end - 1
            if end == begin:
                self.fail()
        return self.slice(begin, end)

    def _function_options(self) -> bool:
        """Parse WITH options. Return True for RETURNS NULL ON NULL INPUT."""
        is_strict = False
        if self.take("WITH"):
            while True:
                if self.take("RETURNS", "NULL", "ON", "NULL", "INPUT"):
                    is_strict = True
                elif self.take_any("EXECUTE", "EXEC"):
                    self.expect("AS")
                    if not self.take("CALLER"):
                        self.refuse("EXECUTE AS of a function", "A function runs as its caller. Write a procedure.")
                elif self.word == "NATIVE_COMPILATION":
                    self.refuse_native()
                elif self.take("INLINE", "="):  # only a matter of performance
                    self.expect_any("ON", "OFF")
                elif not (
                    self.take("SCHEMABINDING") or self.take("ENCRYPTION") or self.take("CALLED", "ON", "NULL", "INPUT")
                ):
                    self.fail()
                if not self.take(","):
                    break
        return is_strict
