-- Removes results that their clients have. Arguments: id and token of each. Answers 1 for each that was there, else 0.
local answers = {}
for i = FIRST, #ARGV, 2 do
  local n, done = find(ARGV[i], ARGV[i + 1])
  answers[#answers + 1] = n and done and remove_result(n) or 0
end
return answers
