-- Removes results that their consumers have processed. Arguments: fences of leases. Answers how many were still theirs.
local acked = 0
for i = FIRST, #ARGV do
  local n = number_of(ARGV[i])
  if call('HGET', P .. 'r:' .. n, 'lease') == ARGV[i] then
    acked = acked + remove_result(n)
  end
end
return acked
