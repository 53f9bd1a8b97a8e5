-- Publishes results and ends their claims. Items of 8: fence, counter, status, body, code, message, attempts, the reason of
-- a dead letter or ''.
-- Answers 1 or 0 for each; a repeated item is answered 1 again, since the first answer may have been lost.
local function finished_before(fence)
  local n = number_of(fence)
  return call('HGET', P .. 'r:' .. n, 'fence') == fence or call('GET', P .. 'f:' .. n) == fence
end

local answers = {}
for i = FIRST, #ARGV, 8 do
  local fence, counter, status, body, code, message, attempts, dead_letter = unpack(ARGV, i, i + 7)
  local e, ours = claimed_by(fence)
  if ours then
    if dead_letter ~= '' then
      give_up(e, dead_letter)
    end
    finish(e, { status = status, body = body, code = code, message = message, attempts = attempts }, counter)
  elseif not e then
    ours = finished_before(fence)
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers
