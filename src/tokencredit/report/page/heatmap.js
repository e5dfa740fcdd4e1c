// The heat map of one completion under one strategy.

// The completion's stretches in order: what lies before, the reasoning, the marker, the answer, what follows.
const stretches = (completion) => {
  const length = completion.tokens.length;
  const [start, end] = completion.reasoning;
  const answer = completion.answer || [length, length];
  const cuts = [
    [0, start, ""],
    [start, end, "reasoning"],
    [end, Math.max(end, answer[0]), ""],
    [Math.max(end, answer[0]), Math.max(end, answer[1]), "answer"],
    [Math.max(end, answer[1]), length, ""],
  ];
  return cuts.filter(([from, to]) => to > from);
};

// One element a token, in groups; only one token at a time is in the order of the Tab key.
const tokenBox = (completion, strategy) => {
  const box = element("div", completion.words ? "tokens words" : "tokens");
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", `Tokens of the completion, credit by ${strategy}`);
  const cells = [];
  for (const [from, to, name] of stretches(completion)) {
    const group = element("span", name);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", name || "other tokens");
    if (name) {
      const label = element("span", "part", name);
      label.setAttribute("aria-hidden", "true");
      group.append(label);
    }
    for (let index = from; index < to; index++) {
      const token = element("span", "token", completion.tokens[index]);
      token.setAttribute("role", "option");
      token.tabIndex = index ? -1 : 0;
      token.dataset.index = index;
      cells.push(token);
      group.append(token);
    }
    box.append(group);
  }
  return [box, cells];
};

const drawScale = (scale, measure, values, ends, nMarked) => {
  const rule = MEASURES[measure];
  if (values.every((value) => value === null)) {
    scale.textContent = `no ${measure} to shade by`;
    return;
  }
  if (ends[0] === ends[1]) {
    scale.textContent = `${measure} ${number(ends[0])} throughout`;
    return;
  }
  scale.replaceChildren(
    element("span", "", number(ends[0])),
    element("span", `bar ${measure}`),
    element("span", "", `${number(ends[1])}${rule.root ? " (square root)" : ""}`),
    element("span", "", nMarked ? `underlined: the ${nMarked} ${rule.marks}` : ""),
  );
};

// Returns the section, its token elements, and a function that shades them by a measure and outlines a role's.
const heatMap = (completion, view) => {
  const section = element("section", "view");
  const head = element("div", "view-head");
  const scale = element("span", "scale");
  const title = element("h3", "", view.strategy);
  title.append(element("span", "note", ` advantage ${number(view.advantage)}`));
  head.append(title, scale);
  const [box, cells] = tokenBox(completion, view.strategy);
  section.append(head, box);

  const paint = (measure, role) => {
    const rule = MEASURES[measure];
    const values = rule.of(completion, view);
    const ends = rule.ends(values.reduce((most, value) => Math.max(most, Math.abs(value || 0)), 0));
    const marked = outstanding(values, rule);
    cells.forEach((token, t) => {
      const [side, heat] = shadeOf(values[t], rule, ends);
      const ofRole = role !== null && completion.roles?.[t] === role;
      token.className = `token ${side}${marked.has(t) ? " top" : ""}${ofRole ? " of-role" : ""}`;
      token.style.setProperty("--heat", heat.toFixed(3));
      if (marked.has(t)) token.dataset.place = marked.get(t);
      else delete token.dataset.place;
    });
    drawScale(scale, measure, values, ends, marked.size);
  };
  return { view, section, box, cells, paint };
};
