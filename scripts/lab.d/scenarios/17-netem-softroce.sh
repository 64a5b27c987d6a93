# A bad network with softroce at both ends: losses, repeats, damage, delay, jitter, disorder; every byte right, no session lost
softroce_up
softroce_peer
start_softroce --lun ram:64MiB --listen $SR_PEERED:$PORT
bad() { # bad WHAT REGION WORDS...: write, read back and compare in three sizes, over a network with netem's WORDS
	local what=$1 region=$2 began; shift 2
	netem "$@"
	began=$(msec)
	in_peer "$ISERBENCH" run "iser://$SR_PEERED:$PORT/$IQN/0" --rdma softroce --local $SR_PEER_ADDR --verify --destroy --rw randwrite,randread \
		--size 4K,64K,1M --depth 32 --region $region --seed 7 --timeout 20s >"$OUT/bench.log" 2>&1 ||
		fail "$what: $(grep -aE 'FAILED|WRONG|iserbench:' "$OUT/bench.log" | head -2)"
	grep -q 'every byte as written' "$OUT/bench.log" || fail "$what: not verified: $(tail -1 "$OUT/bench.log")"
	step "$what: $(($(msec) - began)) ms; $(grep -a repaired "$OUT/bench.log")"
}
bad "no fault" 16M delay 0
bad "loss 0.1 %" 16M loss 0.1%
bad "loss 1 %" 16M loss 1%
bad "loss 5 %" 4M loss 5%
bad "repeats 10 %" 16M duplicate 10%
bad "damage 1 %" 16M corrupt 1%
bad "delay 5 ms" 16M delay 5ms
bad "jitter" 16M delay 5ms 1ms
bad "disorder 1 %" 16M delay 2ms reorder 99%
bad "disorder 10 %" 16M delay 2ms reorder 90% 50%
bad "disorder 75 %" 1M delay 10ms reorder 25% 50%
bad "all of it" 4M delay 2ms 500us loss 1% duplicate 1% corrupt 0.5% reorder 5%
netem
[ "$(stat_of lost)" = 0 ] || fail "a session was lost"
stop_iserd
