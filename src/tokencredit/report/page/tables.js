// Tables: the button in a column's head sorts its rows, and each table can be kept as a file.
const MISSING = "–";
const collator = new Intl.Collator("en", { numeric: true });
const ORDERS = ["none", "ascending", "descending"];

const valueOf = (cell) => {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.textContent === MISSING ? null : cell.textContent;
};

// Numbers before texts; what is missing comes last in both directions, and equal rows stay as they were.
const compareValues = (a, b, direction) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return direction * (typeof a === "number" ? a - b : collator.compare(a, b));
};

const sortRows = (rows, column, order) => {
  if (order === "none") return rows;
  const direction = order === "ascending" ? 1 : -1;
  const keyed = rows.map((row) => [valueOf(row.cells[column]), row]);
  return keyed.sort(([a], [b]) => compareValues(a, b, direction)).map(([, row]) => row);
};

const makeSortable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows];
  heads.forEach((head, column) => {
    const name = head.textContent;
    const press = button(name, name ? "" : "last column", () => {
      const order = ORDERS[(ORDERS.indexOf(head.getAttribute("aria-sort")) + 1) % ORDERS.length];
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order);
      table.tBodies[0].append(...sortRows(rows, column, order));
      say(order === "none" ? "rows in their first order" : `sorted by ${name || "the last column"}, ${order}`);
    });
    press.className = "sort";
    head.replaceChildren(press);
    head.setAttribute("aria-sort", "none");
  });
};

// A cell's value, with the interval where it has one.
const withInterval = (cell) =>
  cell.dataset.low === undefined
    ? valueOf(cell)
    : { value: valueOf(cell), low: Number(cell.dataset.low), high: Number(cell.dataset.high) };

const tableJson = (table) => ({
  title: table.caption.textContent,
  columns: [...table.tHead.rows[0].cells].map((head) => head.textContent),
  rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map(withInterval)),
});

// Rows of plain values: a column with intervals is followed by two with their ends.
const tableRows = (table) => {
  const { columns, rows } = tableJson(table);
  const wide = columns.map((_, column) => rows.some((row) => row[column]?.low !== undefined));
  const spread = (cell, column) => {
    if (!wide[column]) return [cell];
    return cell?.low === undefined ? [cell, null, null] : [cell.value, cell.low, cell.high];
  };
  const heads = columns.flatMap((name, column) => (wide[column] ? [name, `${name} low`, `${name} high`] : [name]));
  return [heads, ...rows.map((row) => row.flatMap(spread))];
};

for (const table of document.querySelectorAll("table")) {
  makeSortable(table);
  const title = table.caption.textContent;
  table.parentElement.append(downloads(title, () => tableRows(table), () => tableJson(table)));
}
