package stat

// QuantileBucket returns the bucket with the percentile p of the values; -1 without any. counts are the numbers of
// values by bucket, not cumulative.
func QuantileBucket(counts []uint64, p uint64) int {
	var total, n uint64
	for _, count := range counts {
		total += count
	}
	for i, count := range counts {
		if n += count; count > 0 && n*100 >= total*p {
			return i
		}
	}
	return -1
}
