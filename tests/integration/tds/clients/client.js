// A client of tedious or mssql: runs the commands on standard input, one a line, as tests/tds_clients.py writes them.
const [library, port, database, user, password] = process.argv.slice(2);
const { createInterface } = require("node:readline");
const driver = require(library);

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

function momentText(value) {
  const day = `${value.getUTCFullYear()}-${pad(value.getUTCMonth() + 1)}-${pad(value.getUTCDate())}`;
  const time = `${pad(value.getUTCHours())}:${pad(value.getUTCMinutes())}:${pad(value.getUTCSeconds())}`;
  return { day, time, both: `${day} ${time}` };
}

function textOf(value, type) {
  if (value === null || value === undefined) return "NULL";
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (typeof value === "boolean") return value ? "1" : "0";
  if (value instanceof Date) {
    const text = momentText(value);
    return type === "Date" ? text.day : type === "Time" ? text.time : text.both;
  }
  return type === "UniqueIdentifier" ? String(value).toLowerCase() : String(value);
}

function valueOf(kind, text) {
  switch (kind) {
    case "int": return Number(text);
    case "decimal": return Number(text);
    case "datetime": return new Date(text.replace(" ", "T") + "Z");
    case "varbinary": return Buffer.from(text, "hex");
    case "null": return null;
    default: return text;
  }
}

const NAMES = { int: "Int", decimal: "Decimal", datetime: "DateTime2", varbinary: "VarBinary", null: "NVarChar",
  nvarchar: "NVarChar", uniqueidentifier: "UniqueIdentifier" };
const OPTIONS = { decimal: { precision: 9, scale: 2 } };

class Tedious {
  open(timeout) {
    return new Promise((resolve, reject) => {
      this.connection = new driver.Connection({
        server: "127.0.0.1",
        authentication: { type: "default", options: { userName: user, password } },
        options: { port: Number(port), database, trustServerCertificate: true, requestTimeout: timeout * 1000,
          useUTC: true },
      });
      this.connection.on("error", () => {});
      this.connection.connect((error) => (error ? reject(error) : resolve()));
    });
  }

  query(sql, parameters) {
    return new Promise((resolve, reject) => {
      const rows = [];
      const request = new driver.Request(sql, (error) => (error ? reject(error) : resolve(rows)));
      parameters.forEach(([kind, text], place) => {
        request.addParameter(`p${place + 1}`, driver.TYPES[NAMES[kind]], valueOf(kind, text), OPTIONS[kind]);
      });
      request.on("row", (columns) => rows.push(columns.map(
        ({ value, metadata }) => textOf(value, metadata.type.name.replace(/N$/, "")))));
      this.connection.execSql(request);
    });
  }

  begin() { return this.change("beginTransaction"); }
  commit() { return this.change("commitTransaction"); }
  rollback() { return this.change("rollbackTransaction"); }
  change(method) {
    return new Promise((resolve, reject) => this.connection[method]((error) => (error ? reject(error) : resolve([]))));
  }

  async close() { this.connection.close(); }
}

class Pool {
  async open(timeout) {
    this.pool = new driver.ConnectionPool({
      server: "127.0.0.1", port: Number(port), user, password, database, requestTimeout: timeout * 1000,
      options: { trustServerCertificate: true },
    });
    await this.pool.connect();
  }

  async query(sql, parameters) {
    const request = new driver.Request(this.transaction || this.pool);
    request.arrayRowMode = true;
    parameters.forEach(([kind, text], place) => {
      const type = kind === "decimal" ? driver.Decimal(9, 2) : driver[NAMES[kind]];
      request.input(`p${place + 1}`, type, valueOf(kind, text));
    });
    const { recordset, columns } = await request.query(sql);
    if (!recordset) return [];
    return recordset.map((row) => row.map((value, place) => textOf(value, columns[0][place].type.name)));
  }

  async begin() { this.transaction = new driver.Transaction(this.pool); await this.transaction.begin(); }
  async commit() { await this.transaction.commit(); this.transaction = null; }
  async rollback() { await this.transaction.rollback(); this.transaction = null; }
  async close() { await this.pool.close(); }
}

const client = library === "mssql" ? new Pool() : new Tedious();
const decode = (text) => Buffer.from(text, "base64").toString();
const encode = (text) => Buffer.from(text).toString("base64");

async function run(line) {
  const [command, ...words] = line.split(" ");
  if (command === "open") return (await client.open(Number(words[0]))) || [];
  if (command !== "query") return (await client[command]()) || [];
  const [sql, ...parameters] = words;
  return client.query(decode(sql), parameters.map((word) => {
    const [kind, text] = word.split(":");
    return [kind, decode(text)];
  }));
}

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      const rows = await run(line);
      console.log("rows " + rows.map((row) => row.map(encode).join(",")).join(";"));
    } catch (error) {
      console.log(`error ${Number(error.number) || 0} ${encode(error.message)}`);
    }
  }
  process.exit(0);
}

main();
