-- Where no memory is left a script may write once it has written: Redis refuses its first command that needs memory, not
-- the later ones, since it takes nothing back. What is in the queue is to be finished then, which frees memory; so each
-- script but those that take requests in begins with a write that needs none. No member is ''.
call('ZREM', P .. 'leases', '')
