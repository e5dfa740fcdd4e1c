// The completions as records again, in the form of records.jsonl, and as rows with one token each.
const COLUMNS = (
  "completion,source,credit,step,row,reward,sequence_advantage,prompt," +
  "position,token,part,role,on_path,right,importance,weight,advantage,probability"
).split(",");

// The text as it was written, where the page shows it otherwise.
const rawTokens = (completion) => completion.tokens.map((token, t) => completion.raw?.[t] ?? token);

const recordOf = (completion, view) => {
  const { source, step, reward, reasoning, answer, rule, roles, on_path, right } = completion;
  return {
    ...(source && { source }),
    credit: view.strategy,
    step,
    row: view.row,
    prompt: completion.raw_prompt ?? completion.prompt,
    tokens: rawTokens(completion),
    ...(roles && { roles }),
    ...(on_path && { on_path }),
    ...(right && { right }),
    importance: view.importance,
    weights: view.weights,
    advantages: view.advantages,
    probability: view.probability || completion.probability,
    advantage: view.advantage,
    reward,
    reasoning,
    answer,
    rule,
  };
};

// The prompt stands in a record's first row alone: it would be most of the file.
const tokenRows = (completion, record, id) => {
  const parts = stretches(completion).flatMap(([from, to, name]) => Array(to - from).fill(name));
  return record.tokens.map((token, t) => [
    id,
    record.source,
    record.credit,
    record.step,
    record.row,
    record.reward,
    record.advantage,
    t ? null : record.prompt,
    t + 1,
    token,
    parts[t],
    record.roles?.[t],
    record.on_path?.[t],
    record.right?.[t],
    record.importance[t],
    record.weights[t],
    record.advantages[t],
    record.probability?.[t],
  ]);
};
