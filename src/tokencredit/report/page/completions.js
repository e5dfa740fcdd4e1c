// The completions: which are chosen, which one is on the page, and under which of its strategies.
const completions = JSON.parse($("data").textContent);
const ANY = "any";
const SEVERAL = "several";
const NOTHING = "nothing";

const strategiesOf = (completion) => completion.views.map((view) => view.strategy);
const strategies = unique(completions.flatMap(strategiesOf));
const sources = unique(completions.map((completion) => completion.source));
const roles = unique(completions.flatMap((completion) => completion.roles || []));

let order = completions.map((_, index) => index);
let place = 0;
let measure = "importance";
let sides = [null, null]; // strategies that were asked for on the left and on the right; null: none yet

// A name's place in its list is the choice's value, so that no name can be taken for another choice.
const chosen = (id, names) => ($(id).value === ANY ? null : names[Number($(id).value)]);
const choices = (names) => names.map((name, index) => [String(index), name]);

// ---- one completion ----
const facts = (completion) => {
  const list = element("dl", "facts");
  const add = (name, value) => {
    const pair = element("div");
    pair.append(element("dt", "", name), " ", element("dd", "", value));
    list.append(pair);
  };
  if (completion.source) add("of", completion.source);
  if (completion.step) add("step", String(completion.step));
  if (completion.step || completion.source) add("row", unique(completion.views.map((view) => view.row)).join(", "));
  if (completion.reward !== null) {
    add("reward", `${number(completion.reward)} (${completion.reward > 0 ? "right" : "wrong"})`);
  }
  add("tokens", String(completion.tokens.length));
  add("answer found by", completion.answer ? completion.rule : "no answer");
  const role = chosen("role", roles);
  if (role !== null) add(`role ${role}`, `${completion.roles.filter((each) => each === role).length} tokens, outlined`);
  return list;
};

const promptOf = (completion) => {
  const prompt = element("p", "prompt", completion.prompt);
  prompt.dir = "auto";
  prompt.tabIndex = 0;
  prompt.setAttribute("aria-label", "Prompt");
  prompt.setAttribute("role", "region");
  return prompt;
};

// The one or two views to show: those asked for where the completion has them, else the first ones.
const viewsOf = (completion) => {
  const find = (name) => completion.views.find((view) => view.strategy === name);
  const left = find(sides[0]) || completion.views[0];
  if (sides[1] === NOTHING) return [left];
  const wanted = find(sides[1]);
  const right = wanted && wanted !== left ? wanted : completion.views.find((view) => view !== left);
  return right ? [left, right] : [left];
};

const offerSides = (completion, shown) => {
  const names = strategiesOf(completion);
  $("sides").hidden = names.length < 2;
  if (names.length < 2) return;
  fill($("left"), choices(names), String(names.indexOf(shown[0].strategy)));
  const rest = choices(names).filter(([, name]) => name !== shown[0].strategy);
  const right = shown.length > 1 ? String(names.indexOf(shown[1].strategy)) : NOTHING;
  fill($("right"), [...rest, [NOTHING, "nothing"]], right);
};

const paint = () => {
  for (const map of shownMaps) map.paint(measure, chosen("role", roles));
};

const show = () => {
  const completion = completions[order[place]];
  const article = $("completion");
  article.replaceChildren();
  shownMaps = [];
  current = { map: 0, token: -1 };
  $("number").value = order.length ? place + 1 : "";
  $("number").max = order.length;
  $("count").textContent = `of ${order.length}`;
  $("previous").setAttribute("aria-disabled", place <= 0);
  $("next").setAttribute("aria-disabled", place >= order.length - 1);
  hint();
  if (!completion) {
    $("sides").hidden = true;
    article.append(element("p", "note", "No completion of this kind was recorded."));
    return;
  }
  const shown = viewsOf(completion);
  offerSides(completion, shown);
  shownMaps = shown.map((view) => heatMap(completion, view));
  const maps = element("div", "views");
  maps.append(...shownMaps.map((map) => map.section));
  article.append(facts(completion), ...(completion.prompt ? [promptOf(completion)] : []), maps);
  shownMaps.forEach((map, index) => makeReadable(completion, map, index));
  paint();
};

// ---- choosing and paging ----
const filter = () => {
  const [verdict, strategy] = [$("verdict").value, $("strategy").value];
  const [source, role, name] = [chosen("source", sources), chosen("role", roles), chosen("strategy", strategies)];
  const fits = (completion) =>
    (source === null || completion.source === source) &&
    (verdict === ANY || (completion.reward !== null && completion.reward > 0 === (verdict === "right"))) &&
    (role === null || completion.roles?.includes(role)) &&
    (strategy === ANY || (strategy === SEVERAL ? completion.views.length > 1 : strategiesOf(completion).includes(name)));
  order = completions.map((_, index) => index).filter((index) => fits(completions[index]));
  place = 0;
  if (name) sides[0] = name;
  show();
  say(order.length ? `${order.length} completions; the first is shown` : "no completions");
};

const turnTo = (wanted) => {
  place = Math.min(Math.max(wanted, 0), order.length - 1);
  show();
  if (order.length) say(`completion ${place + 1} of ${order.length}`);
};

// What is chosen, under every strategy or under the one that was chosen.
const chosenRecords = () => {
  const name = chosen("strategy", strategies);
  return order.flatMap((index) =>
    completions[index].views
      .filter((view) => !name || view.strategy === name)
      .map((view) => [completions[index], recordOf(completions[index], view), index + 1]),
  );
};

const offerFilters = () => {
  fill($("source"), [[ANY, "any"], ...choices(sources)], ANY);
  fill($("role"), [[ANY, "any"], ...choices(roles)], ANY);
  const several = completions.some((completion) => completion.views.length > 1) ? [[SEVERAL, "several"]] : [];
  fill($("strategy"), [[ANY, "any"], ...choices(strategies), ...several], ANY);
  const everywhere = completions.every((completion) => completion.views.length === strategies.length);
  $("source").parentElement.hidden = sources.length < 2;
  $("role").parentElement.hidden = !roles.length;
  $("strategy").parentElement.hidden = everywhere;
  const alone = completions.length < 2;
  $("verdict").parentElement.hidden = alone || completions.every((completion) => completion.reward === null);
  $("pager").hidden = alone;
  for (const id of ["verdict", "role", "strategy", "source"]) $(id).addEventListener("change", filter);
};

const begin = () => {
  $("browser").hidden = false;
  offerFilters();
  $("previous").addEventListener("click", () => turnTo(place - 1));
  $("next").addEventListener("click", () => turnTo(place + 1));
  $("number").addEventListener("change", () => {
    const wanted = Math.round($("number").valueAsNumber) - 1;
    turnTo(Number.isNaN(wanted) ? place : wanted);
  });
  $("measures").addEventListener("change", (event) => {
    measure = event.target.value;
    paint();
  });
  $("sides").addEventListener("change", () => {
    const names = strategiesOf(completions[order[place]]);
    sides = [$("left"), $("right")].map((side) => (side.value === NOTHING ? NOTHING : names[Number(side.value)]));
    show();
  });
  $("kept").append(
    downloads(
      "the chosen completions",
      () => [COLUMNS, ...chosenRecords().flatMap(([completion, record, id]) => tokenRows(completion, record, id))],
      () => chosenRecords().map(([, record]) => record),
    ),
  );
  // Begin where there is something to see.
  const first = completions.findIndex((c) => c.views.some((view) => view.importance.some((value) => value > 0)));
  place = Math.max(first, 0);
  show();
};

if (completions.length) begin();
