-- queries and changes of rows, of SQL Server 2005 to 2025
SELECT Berth, Tide = Depth - 1, 'note' = Remark, Remark AS N'what was said', [x] = 1, Depth "deep" FROM Harbour.Berths
GO
SELECT ALL Berth FROM Harbour.Berths
GO
SELECT TOP (@n) PERCENT WITH TIES Berth FROM Harbour.Berths ORDER BY Depth
GO
SELECT TOP 3 Berth, (SELECT TOP 1 Ship FROM Harbour.Calls c WHERE c.Berth = b.Berth ORDER BY Arrived DESC) AS Latest FROM Harbour.Berths b
GO
SELECT TOP (SELECT COUNT(*) / 2 FROM Harbour.Calls) Ship FROM Harbour.Calls ORDER BY Ship
GO
SELECT DISTINCT TOP (5) Ship FROM Harbour.Calls ORDER BY Ship DESC
GO
SELECT Ship FROM Harbour.Calls ORDER BY Ship OFFSET @skip ROWS FETCH NEXT @take ROWS ONLY
GO
SELECT Ship FROM Harbour.Calls ORDER BY 1 OFFSET (@page - 1) * 10 ROWS FETCH FIRST 10 ROWS ONLY
GO
SELECT Ship FROM Harbour.Calls ORDER BY (SELECT NULL) OFFSET 0 ROWS
GO
SELECT Ship FROM Harbour.Calls ORDER BY CASE WHEN Cargo IS NULL THEN 1 ELSE 0 END, Cargo ASC
GO
SELECT c.Ship FROM Harbour.Calls AS c, Harbour.Berths AS b WHERE c.Berth *= b.Berth
GO
SELECT c.Ship FROM Harbour.Calls AS c, Harbour.Berths AS b WHERE c.Berth =* b.Berth
GO
SELECT Ship, Tons FROM Harbour.Calls ORDER BY Ship COMPUTE SUM(Tons), AVG(Tons)
GO
SELECT Ship, Tons FROM Harbour.Calls ORDER BY Ship, Tons COMPUTE MAX(Tons) BY Ship COMPUTE MAX(Tons)
GO
SELECT Ship, SUM(Tons) FROM Harbour.Calls GROUP BY ALL Ship
GO
SELECT Ship, SUM(Tons) FROM Harbour.Calls GROUP BY Ship WITH CUBE
GO
SELECT Ship, Cargo, SUM(Tons) FROM Harbour.Calls GROUP BY GROUPING SETS (Ship, (Ship, Cargo), ROLLUP (Cargo), ())
GO
SELECT Ship, Cargo, COUNT_BIG(*) FROM Harbour.Calls GROUP BY CUBE ((Ship, Cargo), Berth)
GO
SELECT SUM(Tons) FROM Harbour.Calls HAVING SUM(Tons) > 100
GO
SELECT YEAR(Arrived), COUNT(*) FROM Harbour.Calls GROUP BY YEAR(Arrived) HAVING COUNT(*) BETWEEN 2 AND 9
GO
SELECT Ship FROM Harbour.Calls WITH (NOLOCK) WHERE Berth = 4
GO
SELECT Ship FROM Harbour.Calls (NOLOCK) WHERE Berth = 4
GO
SELECT Ship FROM Harbour.Calls AS c (NOLOCK, INDEX = 1) WHERE Berth = 4
GO
SELECT Ship FROM Harbour.Calls c WITH (READPAST, UPDLOCK, ROWLOCK)
GO
SELECT Ship FROM Harbour.Calls WITH (INDEX (ByShip, ByBerth) NOLOCK)
GO
SELECT Ship FROM Harbour.Calls WITH (INDEX (PkCalls), FORCESEEK)
GO
SELECT Ship FROM Harbour.Calls WITH (FORCESEEK (ByShip (Ship)))
GO
SELECT Ship FROM Harbour.Calls WITH (FORCESCAN, HOLDLOCK, PAGLOCK, TABLOCK)
GO
SELECT Ship FROM Harbour.Calls WITH (READCOMMITTEDLOCK, NOEXPAND)
GO
SELECT Ship FROM Harbour.Calls HOLDLOCK
GO
SELECT Ship FROM Harbour.Calls OPTION (MAXDOP 1, RECOMPILE)
GO
SELECT Ship FROM Harbour.Calls OPTION (OPTIMIZE FOR UNKNOWN)
GO
SELECT Ship FROM Harbour.Calls WHERE Berth = @b OPTION (OPTIMIZE FOR (@b = 7), KEEP PLAN)
GO
SELECT Ship FROM Harbour.Calls OPTION (USE HINT ('FORCE_DEFAULT_CARDINALITY_ESTIMATION', 'ENABLE_PARALLEL_PLAN_PREFERENCE'))
GO
SELECT Ship FROM Harbour.Calls OPTION (FORCE EXTERNALPUSHDOWN)
GO
SELECT Ship FROM Harbour.Calls OPTION (DISABLE EXTERNALPUSHDOWN)
GO
SELECT Ship FROM Harbour.Calls OPTION (FORCE SCALEOUTEXECUTION)
GO
SELECT Ship FROM Harbour.Calls OPTION (HASH GROUP, HASH UNION, MERGE JOIN)
GO
SELECT Ship FROM Harbour.Calls OPTION (ORDER GROUP, PARAMETERIZATION SIMPLE, MAX_GRANT_PERCENT = 20)
GO
SELECT Ship FROM Harbour.Calls OPTION (USE PLAN N'<ShowPlanXML/>')
GO
SELECT Ship FROM Harbour.Calls AS c OPTION (TABLE HINT (c, INDEX (ByShip), NOLOCK))
GO
SELECT Ship FROM Harbour.Calls OPTION (FOR TIMESTAMP AS OF '2024-01-05T10:00:00')
GO
SELECT Ship FROM Harbour.Calls FOR SYSTEM_TIME AS OF @then WHERE Berth = 2
GO
SELECT c.Ship, b.Depth FROM Harbour.Calls FOR SYSTEM_TIME ALL AS c JOIN Harbour.Berths FOR SYSTEM_TIME AS OF '20240105' AS b ON b.Berth = c.Berth
GO
SELECT Ship FROM Harbour.Calls TABLESAMPLE (100 ROWS)
GO
SELECT Ship FROM Harbour.Calls TABLESAMPLE SYSTEM (3) REPEATABLE (42)
GO
SELECT c.Ship FROM Harbour.Calls c CROSS JOIN Harbour.Berths b
GO
SELECT c.Ship FROM Harbour.Calls c INNER HASH JOIN Harbour.Berths b ON b.Berth = c.Berth
GO
SELECT c.Ship FROM Harbour.Calls c LEFT OUTER LOOP JOIN Harbour.Berths b ON b.Berth = c.Berth
GO
SELECT c.Ship FROM Harbour.Calls c FULL MERGE JOIN Harbour.Berths b ON b.Berth = c.Berth
GO
SELECT c.Ship FROM Harbour.Calls c INNER REDUCE JOIN Harbour.Berths b ON b.Berth = c.Berth
GO
SELECT c.Ship FROM Harbour.Calls c RIGHT JOIN (Harbour.Berths b INNER JOIN Harbour.Quays q ON q.Quay = b.Quay) ON b.Berth = c.Berth
GO
SELECT x.Ship, y.n FROM Harbour.Calls x CROSS APPLY (SELECT COUNT(*) AS n FROM Harbour.Calls z WHERE z.Ship = x.Ship) y
GO
SELECT x.Ship, v.k FROM Harbour.Calls x OUTER APPLY (VALUES (x.Berth), (x.Tons)) AS v (k)
GO
SELECT s.value, s.ordinal FROM STRING_SPLIT('oak,ash,elm', ',', 1) AS s
GO
SELECT value FROM GENERATE_SERIES(0, 50, 5)
GO
SELECT g.value FROM Harbour.Calls c CROSS APPLY GENERATE_SERIES(1, c.Berth) g
GO
SELECT p.Ship, p.[Grain], p.[Coal] FROM (SELECT Ship, Cargo, Tons FROM Harbour.Calls) s PIVOT (SUM(Tons) FOR Cargo IN ([Grain], [Coal])) AS p
GO
SELECT Ship, Kind, Tons FROM Harbour.Yearly UNPIVOT (Tons FOR Kind IN (Grain, Coal)) u
GO
SELECT p.Name FROM Captain p, Sails s, Vessel v WHERE MATCH (p-(s)->v)
GO
SELECT p.Name FROM Captain p, Sails s, Vessel v, Docks d, Port o WHERE MATCH (p-(s)->v-(d)->o) AND o.Name = 'Hull'
GO
SELECT p.Name, STRING_AGG(q.Name, '->') WITHIN GROUP (GRAPH PATH) FROM Captain AS p, Knows FOR PATH AS k, Captain FOR PATH AS q WHERE MATCH (SHORTEST_PATH (p(-(k)->q){1,4}))
GO
SELECT p.$node_id, k.$from_id FROM Captain p, Knows k
GO
SELECT NODE_ID_FROM_PARTS(OBJECT_ID('Captain'), 1), GRAPH_ID_FROM_NODE_ID($node_id) FROM Captain
GO
SELECT * FROM OPENROWSET (BULK '/in/ships.json', SINGLE_CLOB) AS j
GO
SELECT * FROM OPENROWSET (BULK '/in/ships.parquet', FORMAT = 'PARQUET', DATA_SOURCE = 'Lake') WITH (Ship varchar(40), Tons int) AS r
GO
SELECT * FROM OPENROWSET (BULK ('/in/a.csv', '/in/b.csv'), FORMAT = 'CSV', PARSER_VERSION = '2.0', HEADER_ROW = TRUE) AS r
GO
SELECT * FROM OPENROWSET ('MSDASQL', 'DRIVER={x};', 'SELECT Ship FROM t') r
GO
SELECT * FROM OPENQUERY (Rotterdam, 'SELECT Ship FROM Calls WHERE Cargo = ''Coal''') AS q
GO
SELECT a.Ship FROM OPENDATASOURCE ('MSOLEDBSQL', 'Server=Rotterdam;').Port.dbo.Calls AS a
GO
SELECT Ship FROM Rotterdam.Port.dbo.Calls
GO
SELECT Ship FROM Rotterdam...Calls
GO
SELECT Ship FROM Port..Calls
GO
SELECT * FROM OPENXML (@doc, '/ships/ship', 3) WITH (Ship varchar(40) '@name', Tons int 'tons') AS x
GO
SELECT * FROM OPENJSON (@j, 'lax $.ships') WITH (Ship nvarchar(40) 'strict $.name', Rest nvarchar(max) '$' AS JSON) AS o
GO
SELECT [key], value, type FROM OPENJSON (@j)
GO
SELECT k.RANK, c.Ship FROM Harbour.Calls c JOIN CONTAINSTABLE (Harbour.Calls, (Remark, Title), '"storm*" OR FORMSOF(INFLECTIONAL, wind)', 5) k ON k.[KEY] = c.Id
GO
SELECT k.[KEY] FROM FREETEXTTABLE (Harbour.Calls, Remark, N'late arrivals', LANGUAGE N'English', 3) k
GO
SELECT Ship FROM Harbour.Calls WHERE CONTAINS (Remark, '"heavy seas" NEAR fog')
GO
SELECT Ship FROM Harbour.Calls WHERE CONTAINS (c.Remark, N'FORMSOF(THESAURUS, gale)') AND Berth = 1
GO
SELECT Ship FROM Harbour.Calls WHERE NOT FREETEXT ((Remark, Title), N'fog', LANGUAGE 1033) OR Berth = 1
GO
SELECT s.matched_document_key FROM SEMANTICSIMILARITYTABLE (Harbour.Papers, Body, @key) s
GO
SELECT d.keyphrase FROM SEMANTICSIMILARITYDETAILSTABLE (Harbour.Papers, Body, @a, Body, @b) d
GO
SELECT c.SYS_CHANGE_OPERATION, c.Id FROM CHANGETABLE (CHANGES Harbour.Calls, @last_version) AS c
GO
SELECT Ship, VECTOR_DISTANCE('cosine', Feel, @v) AS d FROM Harbour.Calls ORDER BY d
GO
SELECT TOP (3) t.Ship, s.distance FROM VECTOR_SEARCH (TABLE = Harbour.Calls AS t, COLUMN = Feel, SIMILAR_TO = @v, METRIC = 'cosine', TOP_N = 3) AS s
GO
SELECT VECTOR_NORM(CAST('[1,2]' AS vector(2)), 'norm2'), VECTORPROPERTY(@v, 'Dimensions'), VECTOR_NORMALIZE(@v, 'norm1')
GO
SELECT chunk FROM AI_GENERATE_CHUNKS (SOURCE = N'long text', CHUNK_TYPE = FIXED, CHUNK_SIZE = 10)
GO
SELECT d.*, p.Score FROM PREDICT (MODEL = (SELECT Body FROM Models WHERE Id = 1), DATA = Harbour.Calls AS d, RUNTIME = ONNX) WITH (Score float) AS p
GO
SELECT Ship FROM Harbour.Calls FOR XML RAW, XMLDATA
GO
SELECT Ship FROM Harbour.Calls FOR XML RAW ('ship'), ROOT ('ships'), ELEMENTS
GO
SELECT Ship, Tons AS [load/tons], Cargo AS [load/@kind], Remark AS [text()], Berth AS [comment()] FROM Harbour.Calls FOR XML PATH ('ship'), ROOT
GO
SELECT Ship AS [data()] FROM Harbour.Calls FOR XML PATH ('')
GO
SELECT Ship AS [processing-instruction(sail)] FROM Harbour.Calls FOR XML PATH, TYPE
GO
SELECT Ship FROM Harbour.Calls FOR XML AUTO, ELEMENTS XSINIL, XMLSCHEMA
GO
SELECT 1 AS Tag, NULL AS Parent, Ship AS [ship!1!name!ELEMENT], NULL AS [call!2!tons!hide] FROM Harbour.Calls FOR XML EXPLICIT, BINARY BASE64
GO
SELECT Ship, Tons AS [load.tons] FROM Harbour.Calls FOR JSON PATH, INCLUDE_NULL_VALUES
GO
SELECT Ship FROM Harbour.Calls FOR JSON AUTO, WITHOUT_ARRAY_WRAPPER, ROOT ('x')
GO
SELECT (SELECT Ship FROM Harbour.Calls FOR JSON PATH) AS j
GO
SELECT Ship FROM Harbour.Calls FOR BROWSE
GO
WITH XMLNAMESPACES (DEFAULT 'urn:sea', 'urn:land' AS l) SELECT Ship AS 'l:ship' FROM Harbour.Calls FOR XML PATH
GO
WITH Busy (Berth, n) AS (SELECT Berth, COUNT(*) FROM Harbour.Calls GROUP BY Berth), Quiet AS (SELECT Berth FROM Busy WHERE n < 2) SELECT * FROM Quiet
GO
WITH Chain AS (SELECT Id, Boss, 0 AS Depth FROM Crew WHERE Boss IS NULL UNION ALL SELECT c.Id, c.Boss, p.Depth + 1 FROM Crew c JOIN Chain p ON p.Id = c.Boss) SELECT * FROM Chain OPTION (MAXRECURSION 50)
GO
WITH a AS (SELECT 1 AS x) SELECT x FROM a UNION SELECT 2 INTERSECT SELECT 2 EXCEPT SELECT 3 ORDER BY x
GO
(SELECT Ship FROM Harbour.Calls) UNION ALL (SELECT Ship FROM Harbour.Old) ORDER BY Ship
GO
SELECT Ship INTO #kept FROM Harbour.Calls WHERE 1 = 0
GO
SELECT IDENTITY(bigint, 100, 10) AS n, Ship INTO Harbour.Numbered FROM Harbour.Calls ORDER BY Ship
GO
SELECT Ship, Tons, SUM(Tons) OVER (PARTITION BY Ship ORDER BY Arrived ROWS UNBOUNDED PRECEDING) FROM Harbour.Calls
GO
SELECT Ship, SUM(Tons) OVER win, MAX(Tons) OVER (win ROWS 2 PRECEDING) FROM Harbour.Calls WINDOW win AS (PARTITION BY Ship ORDER BY Arrived), other AS (win)
GO
SELECT Ship, LEAD(Arrived, 1, NULL) OVER (ORDER BY Arrived), LAG(Tons) RESPECT NULLS OVER (ORDER BY Arrived) FROM Harbour.Calls
GO
SELECT FIRST_VALUE(Tons) IGNORE NULLS OVER (PARTITION BY Ship ORDER BY Arrived ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING) FROM Harbour.Calls
GO
SELECT PERCENTILE_DISC(0.25) WITHIN GROUP (ORDER BY Tons) OVER (PARTITION BY Ship) FROM Harbour.Calls
GO
SELECT Ship, APPROX_PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY Tons DESC) FROM Harbour.Calls GROUP BY Ship
GO
SELECT APPROX_COUNT_DISTINCT(Ship), CHECKSUM_AGG(CAST(Tons AS int)), STDEV(Tons), VAR(DISTINCT Tons), COUNT(ALL Ship) FROM Harbour.Calls
GO
SELECT STRING_AGG(CAST(Ship AS nvarchar(max)), N'; ') WITHIN GROUP (ORDER BY Ship ASC) FROM Harbour.Calls
GO
SELECT JSON_OBJECT('ship':Ship, 'tons':Tons ABSENT ON NULL) FROM Harbour.Calls
GO
SELECT JSON_OBJECT('a':1, 'b':JSON_ARRAY(1, NULL NULL ON NULL), 'c':JSON_OBJECT() NULL ON NULL)
GO
SELECT JSON_OBJECT('a':1 RETURNING json), JSON_ARRAY('x' RETURNING json)
GO
SELECT JSON_ARRAYAGG(Ship ORDER BY Tons ABSENT ON NULL), JSON_OBJECTAGG(Ship:Tons NULL ON NULL) FROM Harbour.Calls
GO
SELECT JSON_VALUE(@j, '$.a' RETURNING int), JSON_QUERY(@j, '$.b' WITH ARRAY WRAPPER), JSON_PATH_EXISTS(@j, '$.c'), ISJSON(@j, VALUE), ISJSON(@j, OBJECT)
GO
SELECT JSON_CONTAINS(@j, 3, '$.a[*]'), JSON_MODIFY(@j, 'append $.a', 'x')
GO
SELECT REGEXP_LIKE('oak', '^o'), REGEXP_REPLACE('oak', 'a', 'e', 1, 0, 'i'), REGEXP_SUBSTR('oak', '.k'), REGEXP_INSTR('oak', 'k'), REGEXP_COUNT('oak', '.')
GO
SELECT Ship FROM Harbour.Calls WHERE REGEXP_LIKE(Ship, '^S', 'i') AND Tons > 5
GO
SELECT m.match_value FROM REGEXP_MATCHES(N'a1b2', N'\d') AS m
GO
SELECT s.value FROM REGEXP_SPLIT_TO_TABLE(N'a1b2', N'\d') AS s
GO
SELECT EDIT_DISTANCE('oak', 'oat'), EDIT_DISTANCE_SIMILARITY('oak', 'oat'), JARO_WINKLER_DISTANCE('oak', 'oat'), JARO_WINKLER_SIMILARITY('oak', 'oat')
GO
SELECT DATE_BUCKET(hour, 6, Arrived, CAST('2020-01-01' AS datetime)), DATETRUNC(iso_week, Arrived) FROM Harbour.Calls
GO
SELECT GREATEST(1, 2, 3), LEAST('b', 'a'), IIF(1 = 1, 'y', 'n'), CHOOSE(3, 'a', 'b', 'c'), NULLIF(1, 1)
GO
SELECT 1 WHERE 'a' IS DISTINCT FROM NULL OR NULL IS NOT DISTINCT FROM @x
GO
SELECT Arrived AT TIME ZONE 'UTC' AT TIME ZONE @zone AS Here FROM Harbour.Calls
GO
SELECT TRIM(BOTH '#' FROM '##a##'), TRIM(TRAILING '!' FROM 'a!'), LTRIM('xxa', 'x'), RTRIM('axx', 'x')
GO
SELECT {fn NOW()}, {fn UCASE('a')}, {fn LENGTH('abc')}, {fn DAYOFWEEK({d '2024-02-29'})}, {fn TIMESTAMPADD(SQL_TSI_DAY, 1, {ts '2024-02-29 00:00:00'})}
GO
SELECT {fn CONVERT('5', SQL_INTEGER)}, {fn LOCATE('a', 'bab', 2)}, {t '23:59:59'}
GO
SELECT a.Ship FROM {oj Harbour.Calls a LEFT OUTER JOIN Harbour.Berths b ON a.Berth = b.Berth}
GO
SELECT Ship FROM Harbour.Calls WHERE Ship LIKE 'a|%%' {escape '|'}
GO
SELECT N'x' COLLATE Latin1_General_100_BIN2_UTF8, 'a' + 'b' COLLATE database_default
GO
SELECT 0x, 0xdead, 1e0, 1E+3, .5, 5., -.5e-2, $1,234.50, ¥5, €1.50, - $3
GO
SELECT +1, -(+1), ~0, 7 & 3, 7 | 8, 7 ^ 2, 9 % 4, 1 << 4, 256 >> 2
GO
SELECT 'a' || 'b', 1 WHERE 3 !< 2 AND 2 !> 3 AND 1 != 2
GO
SELECT @a = Ship, @b += 1, @c = @c + Tons FROM Harbour.Calls
GO
SELECT @x.value('(/a/b)[1]', 'varchar(10)'), @x.query('for $i in /a return $i'), @x.exist('/a[b = 1]')
GO
SELECT n.c.value('.', 'int') FROM @x.nodes('/a/b') AS n(c)
GO
SELECT c.Body.value('(/s/@n)[1]', 'int') AS n, r.x.query('.') FROM Harbour.Calls c CROSS APPLY c.Body.nodes('/s') AS r(x) WHERE c.Body.exist('/s') = 1
GO
SELECT geography::Point(53.7, -0.3, 4326).STDistance(@here), geometry::STGeomFromText('POINT (1 2)', 0).STX, geography::UnionAggregate(Place) FROM Harbour.Berths
GO
SELECT Place.STBuffer(5).STIntersects(@area), Place.Lat, Place.ToString() FROM Harbour.Berths
GO
SELECT Node.GetLevel(), Node.GetAncestor(1).ToString(), hierarchyid::Parse('/1/2/') FROM Crew WHERE Node.IsDescendantOf(@top) = 1
GO
SELECT CAST(Node AS nvarchar(100)), CONVERT(hierarchyid, '/1/'), TRY_CAST(@s AS geography) FROM Crew
GO
SELECT CONVERT(char(8), GETDATE(), 112), CONVERT(varchar, @d, 126), TRY_CONVERT(datetime2(3), @s, 121), CAST(@x AS xml), CONVERT(xml, @s, 2)
GO
SELECT PARSE(@s AS date USING 'de-DE'), TRY_PARSE(@s AS decimal(9, 2) USING 'en-GB'), FORMAT(GETDATE(), 'D', 'fr-FR')
GO
SELECT CAST(1 AS sys.int), CAST('x' AS sysname), CAST(1 AS Harbour.Weight), CONVERT(national character varying(5), 'a')
GO
SELECT NEXT VALUE FOR Harbour.Tickets AS t, NEXT VALUE FOR Tickets OVER (ORDER BY Ship) FROM Harbour.Calls
GO
SELECT COUNT(*) FROM Harbour.Calls WHERE Berth = SOME (SELECT Berth FROM Harbour.Berths) OR Tons >= ALL (SELECT Tons FROM Harbour.Old)
GO
SELECT Ship FROM Harbour.Calls WHERE (Tons > 1 AND (Berth IN (1, 2, NULL) OR NOT Berth BETWEEN 3 AND 4)) AND Ship NOT LIKE '[^a-c]_%'
GO
SELECT Ship FROM Harbour.Calls WHERE EXISTS (SELECT * FROM Harbour.Berths b WHERE b.Berth = Calls.Berth EXCEPT SELECT * FROM Harbour.Berths)
GO
SELECT Ship FROM Harbour.Calls WHERE Tons = (SELECT MAX(Tons) FROM Harbour.Calls) AND CURRENT_USER = 'dbo'
GO
SELECT CASE Cargo WHEN 'Coal' THEN 1 WHEN 'Grain' THEN 2 END, CASE WHEN Tons > 5 THEN CASE WHEN Berth = 1 THEN 'a' END ELSE 'b' END FROM Harbour.Calls
GO
SELECT $IDENTITY, IDENTITYCOL, $ROWGUID, ROWGUIDCOL FROM Harbour.Calls
GO
SELECT %%physloc%%, %%lockres%% FROM Harbour.Calls
GO
SELECT $PARTITION.ByTons(50), COUNT(*) FROM Harbour.Calls GROUP BY $PARTITION.ByTons(Tons)
GO
SELECT * FROM ::fn_listextendedproperty(NULL, NULL, NULL, NULL, NULL, NULL, NULL)
GO
SELECT * FROM sys.fn_trace_gettable('c:\t.trc', DEFAULT)
GO
SELECT * FROM sys.dm_io_virtual_file_stats(DB_ID(), NULL) AS f
GO
SELECT * FROM sys.dm_db_index_physical_stats(DB_ID(), OBJECT_ID('Harbour.Calls'), NULL, NULL, 'LIMITED')
GO
SELECT * FROM sys.dm_exec_query_stats q CROSS APPLY sys.dm_exec_sql_text(q.sql_handle) t OUTER APPLY sys.dm_exec_query_plan(q.plan_handle) p
GO
SELECT * FROM fn_dblog(NULL, NULL)
GO
SELECT @@CPU_BUSY, @@IDLE, @@IO_BUSY, @@DATEFIRST, @@SERVICENAME, @@TOTAL_WRITE, @@TRANCOUNT
GO
SELECT SQL_VARIANT_PROPERTY(@v, 'BaseType'), HASHBYTES('SHA2_256', N'x'), NEWID(), NEWSEQUENTIALID(), CRYPT_GEN_RANDOM(8), PWDENCRYPT('x')
GO
SELECT ENCRYPTBYPASSPHRASE('p', 'x'), DECRYPTBYKEY(Body), DECRYPTBYKEYAUTOCERT(CERT_ID('c'), NULL, Body), ENCRYPTBYKEY(KEY_GUID('k'), 'x', 1, 'y') FROM Harbour.Papers
GO
SELECT ASYMKEY_ID('k'), SIGNBYASYMKEY(ASYMKEY_ID('k'), 'x', N'p'), VERIFYSIGNEDBYCERT(CERT_ID('c'), 'x', 0x01), CERTPRIVATEKEY(1, 'p')
GO
SELECT HAS_PERMS_BY_NAME('Harbour.Calls', 'OBJECT', 'SELECT'), IS_MEMBER('db_owner'), SUSER_SID('sa'), LOGINPROPERTY('sa', 'IsLocked'), ORIGINAL_DB_NAME()
GO
SELECT CONNECTIONPROPERTY('net_transport'), SESSION_CONTEXT(N'k'), CONTEXT_INFO(), HOST_NAME(), APP_NAME(), CURRENT_TRANSACTION_ID()
GO
SELECT FILEGROUP_NAME(1), FILE_IDEX('x'), FILEPROPERTY('x', 'SpaceUsed'), INDEX_COL('t', 1, 1), STATS_DATE(1, 1), IDENT_CURRENT('t')
GO
SELECT COLUMNS_UPDATED(), EVENTDATA(), TRIGGER_NESTLEVEL(), XACT_STATE(), ROWCOUNT_BIG(), ERROR_MESSAGE(), GETANSINULL()
GO
SELECT TEXTPTR(Body), TEXTVALID('t.Body', 0x00), PATINDEX('%a%', Body), DATALENGTH(Body) FROM Harbour.Papers
GO
SELECT LEFT_SHIFT(1, 3), RIGHT_SHIFT(8, 1), BIT_COUNT(7), GET_BIT(5, 0), SET_BIT(0, 3, 1)
GO
SELECT CURRENT_DATE, UNISTR(N'\00e9'), BASE64_ENCODE(0x01, 1), PRODUCT(Tons) FROM Harbour.Calls
GO
SELECT FORMATMESSAGE('%s is %d', 'a', 1), TRANSLATE('abc', 'ab', 'xy'), CONCAT_WS(',', 1, NULL, 'x'), STRING_ESCAPE('"', 'json'), QUOTENAME('a', '"')
GO
SELECT h.Ship.value AS v FROM Harbour.Calls AS h WHERE h.[select] = 1 AND [from].[order] = 2
GO
SELECT "Ship" AS "the ""ship""" FROM "Harbour"."Calls" WHERE "Tons" > 1
GO
SELECT t.* FROM (VALUES (1, N'a'), (2, NULL)) AS t (n, s)
GO
SELECT * FROM (SELECT Ship FROM Harbour.Calls UNION SELECT Ship FROM Harbour.Old) AS u (Ship) WHERE Ship > 'M'
GO
SELECT * FROM Harbour.Nearest(DEFAULT, @lat) AS n JOIN dbo.Split(N'a,b', DEFAULT) s ON s.i = n.i
GO
SELECT dbo.Sum2(1, DEFAULT), Harbour.dbo.Sum2(1, 2), master.dbo.fn_varbintohexstr(0x01)
GO
SELECT Harbour.Weight::Parse('5t').Tons, @w.Tons
GO
SELECT 1 AS one -- to the end of the line
GO
SELECT /* a /* nested */ comment */ 1
GO
SELECT 1;;SELECT 2;
GO
INSERT Harbour.Calls VALUES (1, DEFAULT, NULL), (2, 'x', $5)
GO
INSERT INTO Harbour.Calls WITH (TABLOCK, KEEPIDENTITY, IGNORE_TRIGGERS) (Ship) SELECT Ship FROM Harbour.Old ORDER BY Ship
GO
INSERT INTO Harbour.Calls WITH (KEEPDEFAULTS, IGNORE_CONSTRAINTS) SELECT * FROM OPENROWSET (BULK '/in/x.csv', FORMATFILE = '/in/x.fmt', ROWS_PER_BATCH = 10, ERRORFILE = '/out/e') AS b
GO
INSERT TOP (2) INTO Harbour.Calls (Ship) OUTPUT inserted.Id INTO @ids OUTPUT inserted.Ship SELECT Ship FROM Harbour.Old
GO
INSERT INTO Harbour.Calls (Ship, $ROWGUID) VALUES ('a', NEWID())
GO
INSERT Harbour.Calls EXEC ('SELECT 1, 2') AT Rotterdam
GO
INSERT INTO #t EXEC @rc = Harbour.List @n = 3
GO
INSERT INTO Harbour.Log (Ship) SELECT Ship FROM (DELETE FROM Harbour.Calls OUTPUT deleted.Ship WHERE Tons = 0) AS gone (Ship)
GO
INSERT INTO Harbour.Log SELECT Ship, act FROM (MERGE Harbour.Calls AS t USING Harbour.New AS s ON s.Id = t.Id WHEN MATCHED THEN UPDATE SET Tons = s.Tons OUTPUT inserted.Ship, $action) AS m (Ship, act) WHERE act = 'UPDATE'
GO
UPDATE c SET c.Tons += b.Depth FROM Harbour.Calls c WITH (ROWLOCK) INNER JOIN Harbour.Berths b ON b.Berth = c.Berth WHERE b.Quay = 1
GO
UPDATE TOP (3) Harbour.Calls SET Ship = DEFAULT, @was = Tons, @new = Tons = Tons * 2 OUTPUT deleted.*, inserted.Tons INTO @log
GO
UPDATE Harbour.Papers SET Body.WRITE(N'more', NULL, 0), Title = 'x' WHERE Id = 1
GO
UPDATE Harbour.Papers SET Form.modify('replace value of (/a/text())[1] with "b"')
GO
UPDATE Harbour.Berths SET Place.SRID = 4326, Place = geography::Parse('POINT (1 1)')
GO
UPDATE Harbour.Calls SET Tons = 1 WHERE CURRENT OF Walk
GO
UPDATE OPENQUERY (Rotterdam, 'SELECT Tons FROM Calls') SET Tons = 1
GO
UPDATE OPENROWSET ('x', 'y', 'SELECT Tons FROM Calls') SET Tons = 1
GO
UPDATE Rotterdam.Port.dbo.Calls SET Tons = 1
GO
WITH Old AS (SELECT TOP (5) * FROM Harbour.Calls ORDER BY Arrived) DELETE FROM Old OUTPUT deleted.Ship
GO
DELETE TOP (10) PERCENT FROM Harbour.Calls WHERE Tons < 1
GO
DELETE Harbour.Calls FROM Harbour.Calls c LEFT JOIN Harbour.Berths b ON b.Berth = c.Berth WHERE b.Berth IS NULL OPTION (MAXDOP 1)
GO
DELETE FROM OPENROWSET ('x', 'y', 'SELECT Tons FROM Calls')
GO
MERGE Harbour.Calls WITH (HOLDLOCK) AS t USING (SELECT 1, 'x') AS s (Id, Ship) ON t.Id = s.Id AND t.Ship = s.Ship WHEN MATCHED AND t.Tons = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET t.Tons += 1, Ship = DEFAULT WHEN NOT MATCHED BY TARGET AND s.Id > 0 THEN INSERT (Id, Ship) VALUES (s.Id, DEFAULT) WHEN NOT MATCHED BY SOURCE THEN UPDATE SET Tons = 0 OUTPUT $action AS what, inserted.Id, deleted.Id INTO @log (what, a, b) OPTION (RECOMPILE);
GO
MERGE INTO [node].Captain t USING (VALUES ('a')) s (n) ON MATCH (t-(k)->s) WHEN NOT MATCHED THEN INSERT VALUES (s.n);
GO
MERGE Harbour.Calls t USING Harbour.Parse(@x) s ON t.Id = s.Id WHEN NOT MATCHED THEN INSERT VALUES (s.Id, s.Ship);
GO
READTEXT Harbour.Papers.Body @ptr 0 100
GO
WRITETEXT Harbour.Papers.Body @ptr N'all of it'
GO
UPDATETEXT Harbour.Papers.Body @ptr 0 NULL 'x'
GO
UPDATETEXT BULK Harbour.Papers.Body @ptr NULL 0 TIMESTAMP = 0x01 WITH LOG 0x41
GO
BULK INSERT Harbour.Calls FROM '/in/x.csv' WITH (DATAFILETYPE = 'widechar', FIELDTERMINATOR = '|', ROWTERMINATOR = '0x0a', KEEPIDENTITY, KEEPNULLS, BATCHSIZE = 500, MAXERRORS = 0, CODEPAGE = '65001', FIELDQUOTE = '"')
GO
BULK INSERT Harbour..Calls FROM @file
GO
BULK INSERT #t FROM '/in/x.dat' WITH (FORMATFILE = '/in/x.fmt', FIRE_TRIGGERS, CHECK_CONSTRAINTS, LASTROW = 10, KILOBYTES_PER_BATCH = 5)
GO
SELECT Tons AS Limit, Berth AS Minus FROM Harbour.Calls AS c
GO
SELECT (((SELECT COUNT(*) FROM Harbour.Calls) + 1))
GO
SELECT Ship FROM Harbour.Calls WHERE Berth IN (((SELECT 1) + 1))
GO
SELECT a.x FROM (((SELECT 1 AS x) AS a CROSS JOIN Harbour.Calls))
GO
SELECT Ship FROM Harbour.Calls (TABLOCKX, HOLDLOCK)
GO
SELECT Ship FROM Harbour.Calls (UPDLOCK HOLDLOCK), Harbour.Berths (SERIALIZABLE)
GO
SELECT c.Ship FROM Harbour.Calls (READPAST, HOLDLOCK) c JOIN Harbour.Berths (NOLOCK) AS b ON b.Berth = c.Berth
GO
SELECT Port..Calls.* FROM Port..Calls
GO
SELECT Arrived At, Arrived AT TIME ZONE 'UTC' At FROM Harbour.Calls
GO
IF (((SELECT COUNT(*) FROM Harbour.Calls) > 0)) PRINT 'some'
GO
