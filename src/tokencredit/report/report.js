"use strict";
// Shows one completion at a time. Whatever came from a model enters the page through textContent alone.
(() => {
  const completions = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);

  // How each measure becomes a shade: its values, the value without shade, the values of full shade (below and
  // above; `largest` is the greatest magnitude in the completion), and what makes a token stand out.
  const MEASURES = {
    importance: {
      of: (view) => view.importance,
      neutral: 0,
      ends: (largest) => [0, largest],
      root: true,
      standsOut: (value) => (value > 0 ? value : null),
      marks: "greatest",
    },
    weight: {
      of: (view) => view.weights,
      neutral: 1,
      ends: (largest) => [0, Math.max(largest, 2)],
      standsOut: (value) => (value > 1 ? value : null),
      marks: "greatest",
    },
    advantage: {
      of: (view) => view.advantages,
      neutral: 0,
      ends: (largest) => [-largest, largest],
      standsOut: (value) => Math.abs(value) || null,
      marks: "largest",
    },
    probability: {
      of: (view, completion) => completion.probability,
      neutral: 0,
      ends: () => [0, 1],
      unsigned: true,
      standsOut: (value) => -value,
      marks: "least probable",
    },
  };
  const MOST_MARKED = 5;

  let order = completions.map((_, index) => index);
  let place = 0;
  let measure = "importance";
  let cells = []; // one array of token elements a view
  let current = { view: 0, token: 0 };

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const number = (value) => {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1).replace("-", "−");
    return String(Number(value.toPrecision(3))).replace("-", "−");
  };

  // ---- theme ----
  const THEMES = ["auto", "light", "dark"];
  let theme = 0;
  $("theme").addEventListener("click", () => {
    theme = (theme + 1) % THEMES.length;
    if (theme) document.documentElement.dataset.theme = THEMES[theme];
    else delete document.documentElement.dataset.theme;
    $("theme").textContent = `Theme: ${THEMES[theme]}`;
    $("theme").setAttribute("aria-label", `Theme: ${theme ? THEMES[theme] : "as the system"}`);
  });
  if (!completions.length) return;

  // ---- one completion ----
  const facts = (completion) => {
    const list = element("dl", "facts");
    const add = (name, value) => {
      const pair = element("div");
      pair.append(element("dt", "", name), " ", element("dd", "", value));
      list.append(pair);
    };
    const views = completion.views;
    if (completion.run) {
      add("step", String(completion.step));
      add("row", String(completion.row));
      add("credit", views[0].credit === completion.run ? views[0].credit : `${views[0].credit}, ${completion.run}`);
    }
    if (completion.reward !== null) {
      add("reward", `${number(completion.reward)} (${completion.reward > 0 ? "right" : "wrong"})`);
    }
    if (views.length === 1) add("advantage", number(views[0].advantage));
    add("tokens", String(completion.tokens.length));
    add("answer found by", completion.answer ? completion.rule : "no answer");
    if (views.every((view) => view.importance.every((value) => value === null))) {
      add("importance", "not computed for this completion");
    }
    return list;
  };

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

  const tokensOf = (completion, viewIndex) => {
    const view = completion.views[viewIndex];
    const box = element("div", completion.words ? "tokens words" : "tokens");
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-label", `Tokens of the completion, credit by ${view.credit}`);
    const made = [];
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
        token.tabIndex = -1;
        token.dataset.index = index;
        made.push(token);
        group.append(token);
      }
      box.append(group);
    }
    if (made.length) made[0].tabIndex = 0;
    box.addEventListener("mouseover", (event) => point(viewIndex, event.target));
    box.addEventListener("mouseleave", () => read(current.view, current.token));
    box.addEventListener("focusin", (event) => focusOn(viewIndex, event.target));
    box.addEventListener("keydown", (event) => move(viewIndex, event));
    cells.push(made);
    return box;
  };

  const show = () => {
    const completion = completions[order[place]];
    const article = $("completion");
    article.replaceChildren();
    cells = [];
    current = { view: 0, token: -1 };
    $("place").textContent = order.length ? `${place + 1} of ${order.length}` : "none";
    $("previous").disabled = place <= 0;
    $("next").disabled = place >= order.length - 1;
    hint();
    if (!completion) {
      article.append(element("p", "note", "No completion of this kind was recorded."));
      return;
    }
    article.append(facts(completion));
    if (completion.prompt) {
      const prompt = element("p", "prompt", completion.prompt);
      prompt.dir = "auto";
      prompt.tabIndex = 0;
      prompt.setAttribute("aria-label", "Prompt");
      prompt.setAttribute("role", "region");
      article.append(prompt);
    }
    completion.views.forEach((view, index) => {
      const block = element("section", "view");
      const head = element("div", "view-head");
      head.append(completion.views.length > 1 ? element("h3", "", view.credit) : element("span"), element("span", "scale"));
      block.append(head, tokensOf(completion, index));
      article.append(block);
    });
    paint();
  };

  // ---- shades ----
  const paint = () => {
    const completion = completions[order[place]];
    if (!completion) return;
    const scales = document.querySelectorAll(".scale");
    completion.views.forEach((view, index) => {
      const rule = MEASURES[measure];
      const values = rule.of(view, completion);
      const largest = values.reduce((most, value) => Math.max(most, Math.abs(value || 0)), 0);
      const ends = rule.ends(largest);
      const marked = topTokens(values, rule);
      cells[index].forEach((token, t) => {
        const value = values[t];
        const up = value >= rule.neutral;
        const side = value === null ? "" : rule.unsigned ? "level" : up ? "up" : "down";
        const fraction = value === null ? 0 : (value - rule.neutral) / (ends[up ? 1 : 0] - rule.neutral || 1);
        token.className = `token ${side}${marked.has(t) ? " top" : ""}`;
        token.style.setProperty("--heat", (rule.root ? Math.sqrt(fraction) : fraction).toFixed(3));
        if (marked.has(t)) token.dataset.place = marked.get(t);
        else delete token.dataset.place;
      });
      drawScale(scales[index], values, ends, marked.size);
    });
  };

  // The few tokens that stand out most, with their place from 1; none where all are alike.
  const topTokens = (values, rule) => {
    const found = [];
    values.forEach((value, index) => {
      const score = value === null ? null : rule.standsOut(value);
      if (score !== null) found.push([score, index]);
    });
    found.sort((a, b) => b[0] - a[0]);
    if (!found.length || (found.length === values.length && found[0][0] === found[found.length - 1][0])) return new Map();
    return new Map(found.slice(0, MOST_MARKED).map(([, index], rank) => [index, rank + 1]));
  };

  const drawScale = (scale, values, ends, nMarked) => {
    const rule = MEASURES[measure];
    if (values.every((value) => value === null)) {
      scale.textContent = `no ${measure} to shade by`;
      return;
    }
    const high = `${number(ends[1])}${rule.root ? " (square-root shading)" : ""}`;
    scale.replaceChildren(
      element("span", "", number(ends[0])),
      element("span", `bar ${measure}`),
      element("span", "", high),
      element("span", "", nMarked ? `· underlined: the ${nMarked} ${rule.marks}` : ""),
    );
  };

  // ---- reading a token ----
  const hint = () => {
    const text = "Point at a token, or press Tab and the arrow keys, to read its numbers.";
    $("reading").replaceChildren(element("p", "hint", text));
  };

  const read = (viewIndex, t) => {
    for (const peer of document.querySelectorAll(".peer")) peer.classList.remove("peer");
    if (t < 0) return hint();
    const completion = completions[order[place]];
    const which = element("p", "which");
    which.append(`token ${t + 1} of ${completion.tokens.length} `, element("b", "", completion.tokens[t].replace("\n", "")));
    if (completion.roles) which.append(` · ${completion.roles[t]}`);
    if (completion.on_path) which.append(completion.on_path[t] ? " · on the path to the answer" : " · off the path");
    if (completion.right && completion.right[t] !== null) which.append(completion.right[t] ? " · step right" : " · step wrong");
    const lines = completion.views.map((view, index) => {
      const line = element("p", "numbers");
      if (completion.views.length > 1) line.append(element("span", "wide", view.credit), " ");
      for (const name of Object.keys(MEASURES)) {
        line.append(element("span", "", `${name} ${number(MEASURES[name].of(view, completion)[t])}`), " ");
      }
      if (index !== viewIndex) cells[index][t].classList.add("peer");
      return line;
    });
    $("reading").replaceChildren(which, ...lines);
  };

  const point = (viewIndex, target) => {
    if (target.classList.contains("token")) read(viewIndex, Number(target.dataset.index));
  };

  const focusOn = (viewIndex, target) => {
    if (!target.classList.contains("token")) return;
    for (const token of cells[viewIndex]) {
      if (token.tabIndex === 0) token.tabIndex = -1;
    }
    target.tabIndex = 0;
    current = { view: viewIndex, token: Number(target.dataset.index) };
    read(current.view, current.token);
  };

  // The token nearest to `from` on the next line in a direction (1 down, -1 up).
  const onNextLine = (tokens, from, direction) => {
    const box = tokens[from].getBoundingClientRect();
    let best = from;
    let nearest = Infinity;
    let line = null;
    for (let t = from + direction; t >= 0 && t < tokens.length; t += direction) {
      const other = tokens[t].getBoundingClientRect();
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

  const move = (viewIndex, event) => {
    const tokens = cells[viewIndex];
    const from = Number(event.target.dataset.index);
    const goals = {
      ArrowRight: () => Math.min(from + 1, tokens.length - 1),
      ArrowLeft: () => Math.max(from - 1, 0),
      ArrowDown: () => onNextLine(tokens, from, 1),
      ArrowUp: () => onNextLine(tokens, from, -1),
      Home: () => 0,
      End: () => tokens.length - 1,
    };
    if (!goals[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    tokens[goals[event.key]()].focus();
  };

  // ---- paging and choices ----
  const filter = () => {
    const verdict = $("verdict").value;
    const run = $("run").value;
    order = [];
    completions.forEach((completion, index) => {
      if (run && completion.run !== run) return;
      if (verdict !== "all" && (completion.reward === null || completion.reward > 0 !== (verdict === "right"))) return;
      order.push(index);
    });
    place = 0;
    show();
  };

  const turn = (by) => {
    place = Math.min(Math.max(place + by, 0), order.length - 1);
    show();
  };

  const runs = [...new Set(completions.map((completion) => completion.run))];
  if (runs.length > 1) {
    for (const run of runs) {
      const option = element("option", "", run);
      option.value = run;
      $("run").append(option);
    }
    $("run-filter").hidden = false;
  }
  const alone = completions.length === 1;
  $("pager").hidden = alone;
  $("verdict-filter").hidden = alone || completions.every((completion) => completion.reward === null);
  $("verdict").addEventListener("change", filter);
  $("run").addEventListener("change", filter);
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("measures").addEventListener("change", (event) => {
    measure = event.target.value;
    paint();
  });
  // Begin where there is something to see.
  place = Math.max(completions.findIndex((c) => c.views.some((view) => view.importance.some((value) => value > 0))), 0);
  show();
})();
