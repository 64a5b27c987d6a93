#!/usr/bin/env bash
# Runs in the kernel, as root: the scenarios named by SCENARIOS, one after another, each in a shell of its own with a limit
# of its own. Leaves "VERDICT SECONDS WHY" in NAME/result.
set -u
if [ -z "${LAB_ON:-}" ]; then
	OUT=/out
	while read -r w; do eval "export $w"; done <$OUT/.words
fi
cd "$LAB_ROOT" || exit 2
all=$OUT
for name in $SCENARIOS; do
	dir=$all/$name; mkdir -p "$dir"; t=$(date +%s%1N)
	OUT=$dir SCENARIO=$name timeout -k 20 "$LIMIT_ONE" bash scripts/lab.d/guest.sh </dev/null >"$dir/run.log" 2>&1
	code=$?
	line=$(grep -aE '^LAB-(OK|FAIL|SKIP)' "$dir/run.log" | tail -1)
	case $code:$line in
	0:LAB-OK* | 0:LAB-SKIP* | *:LAB-FAIL*) ;;
	124:* | 137:*) line="LAB-FAIL not finished after $LIMIT_ONE s" ;;
	*) line="LAB-FAIL the script ended with status $code: $(tail -1 "$dir/run.log")" ;;
	esac
	t=$(($(date +%s%1N) - t))
	why=${line#* }; [ "$why" != "$line" ] || why=
	# One write: the other side reads as soon as there is something.
	printf '%s %d.%d %s\n' "${line%% *}" $((t / 10)) $((t % 10)) "$why" >"$dir/.result"; mv "$dir/.result" "$dir/result"
done
sync
