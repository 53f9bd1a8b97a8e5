-- When Redis is out of memory it refuses the first write of a script if that write needs memory, and no later one, since
-- scripts are atomic (https://redis.io/docs/latest/develop/programmability/eval-intro/#execution-under-low-memory-conditions).
-- This write needs no memory and changes nothing, since no member is ''. So claims and results work on when memory is full,
-- which frees memory. The scripts that accept requests lack this part and are refused.
call('ZREM', P .. 'leases', '')
