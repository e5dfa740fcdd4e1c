// How each measure becomes a shade: its values, the value without shade, the values of full shade (below and above;
// `largest` is the greatest magnitude in the completion), and what makes a token stand out.
const MEASURES = {
  importance: {
    of: (completion, view) => view.importance,
    neutral: 0,
    ends: (largest) => [0, largest],
    root: true,
    standsOut: (value) => (value > 0 ? value : null),
    marks: "greatest",
  },
  weight: {
    of: (completion, view) => view.weights,
    neutral: 1,
    ends: (largest) => [0, Math.max(largest, 2)],
    standsOut: (value) => (value > 1 ? value : null),
    marks: "greatest",
  },
  advantage: {
    of: (completion, view) => view.advantages,
    neutral: 0,
    ends: (largest) => [-largest, largest],
    standsOut: (value) => Math.abs(value) || null,
    marks: "largest",
  },
  probability: {
    of: (completion, view) => view.probability || completion.probability,
    neutral: 0,
    ends: () => [0, 1],
    unsigned: true,
    standsOut: (value) => -value,
    marks: "least probable",
  },
};
const MOST_MARKED = 5;

// A token's class and the strength of its shade from 0 to 1.
const shadeOf = (value, rule, ends) => {
  if (value === null) return ["", 0];
  const up = value >= rule.neutral;
  const fraction = (value - rule.neutral) / (ends[up ? 1 : 0] - rule.neutral || 1);
  return [rule.unsigned ? "level" : up ? "up" : "down", rule.root ? Math.sqrt(fraction) : fraction];
};

// The few tokens that stand out most, with their place from 1; none where all are alike.
const outstanding = (values, rule) => {
  const found = [];
  values.forEach((value, index) => {
    const score = value === null ? null : rule.standsOut(value);
    if (score !== null) found.push([score, index]);
  });
  found.sort((a, b) => b[0] - a[0]);
  if (!found.length || (found.length === values.length && found[0][0] === found[found.length - 1][0])) return new Map();
  return new Map(found.slice(0, MOST_MARKED).map(([, index], rank) => [index, rank + 1]));
};
