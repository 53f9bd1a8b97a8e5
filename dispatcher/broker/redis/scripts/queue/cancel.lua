-- Cancels requests. Items of 2: id, token ('' for the newest). Answers the state before, for each.
local function cancel(id, token)
  local n, done = find(id, token)
  if not n or done then
    return done and 'done' or 'unknown'
  end
  local e = entry(n)
  local state = STATES[e.state]
  cancel_entry(e)
  return state
end

process_due(MANY)
local answers = {}
for i = FIRST, #ARGV, 2 do
  answers[#answers + 1] = cancel(ARGV[i], ARGV[i + 1])
end
return answers
