# What gotestsum runs after the tests: prints the slowest tests and, in the last line, the counts. Gotestsum counts packages
# that fail outside of their tests as failures, but not as tests.
printf '\nslowest tests\n'
"$GOTESTSUM" tool slowest --num 10 --jsonfile "$GOTESTSUM_JSONFILE"
echo
echo "$(grep -c '"Action":"pass".*"Test":"[^"]' "$GOTESTSUM_JSONFILE") passed, $TESTS_FAILED failed, $TESTS_SKIPPED skipped"
