-- Answers the counters, then pending, claimed, delayed: one script, so that the sums are right at every instant.
local claimed = call('ZCARD', P .. 'leases')
return { call('HGETALL', P .. 'counts'), call('ZCARD', P .. 'waiting') + claimed, claimed, call('ZCARD', P .. 'delayed') }
