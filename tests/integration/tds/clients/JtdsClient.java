// A client of jTDS: runs the commands on standard input, one a line, as tests/tds_clients.py writes them.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.sql.Types;
import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;

public class JtdsClient {
    private static Connection connection;
    private static int timeout;

    public static void main(String[] words) throws Exception {
        Class.forName("net.sourceforge.jtds.jdbc.Driver");
        String url = "jdbc:jtds:sqlserver://127.0.0.1:" + words[0] + "/" + words[1];
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                System.out.println("rows " + run(line.split(" "), url, words[2], words[3]));
            } catch (SQLException error) {
                System.out.println("error " + error.getErrorCode() + " " + encode(String.valueOf(error.getMessage())));
            }
        }
    }

    private static String run(String[] words, String url, String user, String password) throws SQLException {
        switch (words[0]) {
            case "open":
                timeout = Integer.parseInt(words[1]);
                connection = DriverManager.getConnection(url, user, password);
                return "";
            case "begin":
                connection.setAutoCommit(false);
                return "";
            case "commit":
                connection.commit();
                connection.setAutoCommit(true);
                return "";
            case "rollback":
                connection.rollback();
                connection.setAutoCommit(true);
                return "";
            case "close":
                connection.close();
                return "";
            default:
                return query(words);
        }
    }

    private static String query(String[] words) throws SQLException {
        String sql = decode(words[1]).replaceAll("@p[0-9]+", "?");
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setQueryTimeout(timeout);
            for (int place = 2; place < words.length; place++) {
                String[] parts = words[place].split(":", -1);
                bind(statement, place - 1, parts[0], decode(parts[1]));
            }
            List<String> rows = new ArrayList<>();
            boolean isResult = statement.execute();
            while (isResult || statement.getUpdateCount() != -1) {
                if (isResult) {
                    readRows(statement.getResultSet(), rows);
                }
                isResult = statement.getMoreResults();
            }
            return String.join(";", rows);
        }
    }

    private static void bind(PreparedStatement statement, int place, String kind, String text) throws SQLException {
        switch (kind) {
            case "int" -> statement.setInt(place, Integer.parseInt(text));
            case "decimal" -> statement.setBigDecimal(place, new BigDecimal(text));
            case "datetime" -> statement.setTimestamp(place, Timestamp.valueOf(text));
            case "varbinary" -> statement.setBytes(place, HexFormat.of().parseHex(text));
            case "null" -> statement.setNull(place, Types.VARCHAR);
            default -> statement.setString(place, text);
        }
    }

    private static void readRows(ResultSet result, List<String> rows) throws SQLException {
        int columns = result.getMetaData().getColumnCount();
        while (result.next()) {
            List<String> cells = new ArrayList<>();
            for (int column = 1; column <= columns; column++) {
                cells.add(encode(textOf(result, column)));
            }
            rows.add(String.join(",", cells));
        }
    }

    private static String textOf(ResultSet result, int column) throws SQLException {
        Object value = result.getObject(column);
        if (value == null) {
            return "NULL";
        }
        switch (result.getMetaData().getColumnType(column)) {
            case Types.BINARY, Types.VARBINARY, Types.LONGVARBINARY, Types.BLOB:
                return HexFormat.of().formatHex(result.getBytes(column));
            case Types.BIT, Types.BOOLEAN:
                return result.getBoolean(column) ? "1" : "0";
            case Types.TIMESTAMP:
                return new SimpleDateFormat("yyyy-MM-dd HH:mm:ss").format(result.getTimestamp(column));
            case Types.DECIMAL, Types.NUMERIC:
                return result.getBigDecimal(column).stripTrailingZeros().toPlainString();
            default:
                String text = result.getString(column);
                return text.matches("[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}") ? text.toLowerCase() : text;
        }
    }

    private static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
