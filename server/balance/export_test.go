package balance

// MaxFileSize is for tests outside of the package.
const MaxFileSize = maxFileSize

// SumWeights returns the sum of all weights in text.
func SumWeights(text string) (total int, err error) {
	all, err := parseWeights(text)
	for _, name := range all {
		for _, n := range name {
			total += int(n)
		}
	}
	return total, err
}
