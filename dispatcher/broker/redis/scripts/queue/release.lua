-- Returns claims to the queue as if never claimed. Arguments: 1 if they were sent, else 0, then fences.
-- Answers how many were ours; a repeated call gets the same answer. The tenant gets its turn back (the charge).
local unsent = ARGV[FIRST] == '0'
local released = 0
for i = FIRST + 1, #ARGV do
  local e, ours = claimed_by(ARGV[i])
  if ours then
    local key = P .. 'e:' .. e.n
    call('ZREM', P .. 'leases', e.n)
    call('HINCRBY', key, 'delivery', -1)
    if unsent then
      call('HINCRBY', key, 'attempt', -1)
    end
    enqueue(e, tonumber(call('HGET', key, 'charge')))
  else
    ours = was_returned(e, ARGV[i])
  end
  released = released + (ours and 1 or 0)
end
return released
