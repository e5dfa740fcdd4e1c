// Reading a token's numbers, by pointing at it or with the arrow keys.
let shownMaps = []; // the heat maps on the page, all of one completion
let current = { map: 0, token: -1 }; // the token that has, or had, the focus

const hint = () => {
  const text = "Point at a token, or press Tab and the arrow keys, to read its numbers.";
  $("reading").replaceChildren(element("p", "hint", text));
};

const truthOf = (completion, t) => {
  const known = [];
  if (completion.roles) known.push(completion.roles[t]);
  if (completion.on_path) known.push(completion.on_path[t] ? "on the path to the answer" : "off the path");
  if (completion.right && completion.right[t] !== null) known.push(completion.right[t] ? "step right" : "step wrong");
  return known.map((text) => ` · ${text}`).join("");
};

const numbersOf = (completion, view, t) => {
  const line = element("p", "numbers");
  if (shownMaps.length > 1) line.append(element("span", "wide", view.strategy), " ");
  for (const name of Object.keys(MEASURES)) {
    line.append(element("span", "", `${name} ${number(MEASURES[name].of(completion, view)[t])}`), " ");
  }
  return line;
};

const read = (completion, index, t) => {
  for (const peer of document.querySelectorAll(".peer")) peer.classList.remove("peer");
  if (t < 0) return hint();
  const which = element("p", "which");
  const text = completion.tokens[t].replaceAll("\n", "");
  which.append(`token ${t + 1} of ${completion.tokens.length} `, element("b", "", text), truthOf(completion, t));
  shownMaps.forEach((map, other) => {
    if (other !== index) map.cells[t].classList.add("peer");
  });
  $("reading").replaceChildren(which, ...shownMaps.map((map) => numbersOf(completion, map.view, t)));
};

// The token nearest to `from` on the next line in a direction (1 down, -1 up).
const onNextLine = (cells, from, direction) => {
  const box = cells[from].getBoundingClientRect();
  let best = from;
  let nearest = Infinity;
  let line = null;
  for (let t = from + direction; t >= 0 && t < cells.length; t += direction) {
    const other = cells[t].getBoundingClientRect();
    if (Math.abs(other.top - box.top) < box.height / 2) continue;
    if (line !== null && Math.abs(other.top - line) > box.height / 2) break;
    line = other.top;
    if (Math.abs(other.left - box.left) < nearest) {
      nearest = Math.abs(other.left - box.left);
      best = t;
    }
  }
  return best;
};

const goal = (cells, from, key) => {
  if (key === "ArrowRight") return Math.min(from + 1, cells.length - 1);
  if (key === "ArrowLeft") return Math.max(from - 1, 0);
  if (key === "ArrowDown") return onNextLine(cells, from, 1);
  if (key === "ArrowUp") return onNextLine(cells, from, -1);
  if (key === "Home") return 0;
  if (key === "End") return cells.length - 1;
  return null;
};

const makeReadable = (completion, map, index) => {
  const { box, cells } = map;
  const tokenAt = (event) => {
    const token = event.target.closest(".token");
    return token ? Number(token.dataset.index) : null;
  };
  box.addEventListener("mouseover", (event) => {
    const t = tokenAt(event);
    if (t !== null) read(completion, index, t);
  });
  box.addEventListener("mouseleave", () => read(completion, current.map, current.token));
  box.addEventListener("focusin", (event) => {
    const t = tokenAt(event);
    if (t === null) return;
    for (const cell of cells) {
      if (cell.tabIndex !== 0) continue;
      cell.tabIndex = -1;
      cell.removeAttribute("aria-selected");
    }
    cells[t].tabIndex = 0;
    cells[t].setAttribute("aria-selected", "true");
    current = { map: index, token: t };
    read(completion, index, t);
  });
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = goal(cells, tokenAt(event), event.key);
    if (next === null) return;
    event.preventDefault();
    cells[next].focus();
  });
};
