// Files for the reader to keep, made in the page: nothing is fetched for them, and nothing sent.

// What a spreadsheet would take for a formula; an apostrophe before it keeps it text.
const FORMULA = /^[=+\-@\t\r]/;

const csvCell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

// RFC 4180.
const toCsv = (rows) => rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");

const save = (name, type, text) => {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
};

// Buttons that save the same content as CSV and as JSON; each is made when it is asked for.
const downloads = (title, asRows, asJson) => {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80) || "table";
  const line = element("p", "downloads", "download ");
  line.append(
    button("CSV", `Download ${title} as CSV`, () => save(`${name}.csv`, "text/csv", toCsv(asRows()))),
    " ",
    button("JSON", `Download ${title} as JSON`, () =>
      save(`${name}.json`, "application/json", `${JSON.stringify(asJson(), null, 1)}\n`),
    ),
  );
  return line;
};
