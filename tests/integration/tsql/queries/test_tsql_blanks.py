"""The blanks that pad a char: where they are significant, and where not."""

from __future__ import annotations

import servicebroker as sb
from tsql_support import output_of, scalar


def test_blanks_that_fill_a_char_need_no_pattern(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Filled (a char(6), b nchar(6)); INSERT Filled VALUES ('abc', N'abc')")
    found = [
        scalar(db, f"DECLARE @p varchar(9) = 'a_c'; SELECT COUNT(*) FROM Filled WHERE {like}")
        for like in (
            "a LIKE 'abc'",
            "a LIKE '%bc'",
            "a LIKE '[a]bc  '",
            "a LIKE @p",
            "a NOT LIKE 'a%c'",
            "b LIKE N'abc'",
        )
    ]
    assert found == [1, 1, 0, 1, 0, 0]


def test_a_char_keeps_its_blanks_in_a_text(db: sb.Database) -> None:
    script = """
        CREATE TABLE Padded (a char(5), b nchar(3)); INSERT Padded VALUES ('ab', N'c')
        SELECT a + b + '|', CONCAT(a, '|'), REPLACE(a, ' ', '-'), LEN(a), CAST(a AS binary(5)) FROM Padded WHERE a = 'ab'
        DECLARE @c char(4) = 'x'; SELECT @c + '|'"""
    assert output_of(db, script) == [[("ab   c  |", "ab   |", "ab---", 2, b"ab   ")], [("x   |",)]]


def test_the_blanks_of_a_char_do_not_count_when_it_is_compared(db: sb.Database) -> None:
    output_of(
        db,
        """CREATE TABLE PaddedToo (a char(5), b nchar(3)) CREATE TABLE PaddedNames (a varchar(5))
        INSERT PaddedToo VALUES ('ab', N'c') INSERT PaddedNames VALUES ('ab')""",
    )
    for condition in (
        "CAST(a AS varchar(5)) = 'ab'",
        "CAST(a AS varchar(5)) IN ('ab  ')",
        "ISNULL(CAST(a AS varchar(9)), '') = 'ab'",
        "a + '' = 'ab' AND a + b = 'ab   c'",
        "CONCAT(a, b) = 'ab   c' AND UPPER(a) = 'AB'",
        "EXISTS (SELECT * FROM PaddedNames n WHERE n.a = p.a AND n.a = CAST(p.a AS varchar(9)))",
    ):
        assert output_of(db, f"SELECT COUNT(*) FROM PaddedToo p WHERE {condition}") == [[(1,)]], condition
