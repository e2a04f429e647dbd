# What gotestsum runs after the tests: prints the slowest tests, those that passed only when they ran again, and, in the
# last line, the counts of tests by their last outcome. A package that fails outside of its tests counts as one that failed.
printf '\nslowest tests\n'
"$GOTESTSUM" tool slowest --num 10 --jsonfile "$GOTESTSUM_JSONFILE"
echo
awk -v skipped="$TESTS_SKIPPED" '
function field(name,    at, rest) {
	at = index($0, "\"" name "\":\"")
	if (!at)
		return ""
	rest = substr($0, at + length(name) + 4)
	return substr(rest, 1, index(rest, "\"") - 1)
}
/"Action":"(pass|fail)"/ {
	package = field("Package"); test = field("Test"); action = field("Action")
	if (test == "") {
		if (action == "fail" && !(package in failing))
			broken++
		next
	}
	if (action == "fail") {
		failures[package " " test]++
		failing[package] = 1
	}
	last[package " " test] = action
}
END {
	for (name in last) {
		count[last[name]]++
		if (last[name] == "pass" && failures[name])
			print "passed only when it ran again: " name
	}
	printf "%d passed, %d failed, %d skipped\n", count["pass"], count["fail"] + broken, skipped
}' "$GOTESTSUM_JSONFILE"
