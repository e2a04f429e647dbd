// Package spelling finds the known word that an unknown one is probably a typing error for.
// The configuration's parser and the command line use it in their error messages.
package spelling

import "strings"

// Closest returns the word of allowed that text is probably a typing error for, or "".
func Closest(text string, allowed []string) string {
	// One wrong letter in three: "lop" is loop, but "dns64" is not "ready".
	best, limit := "", max(1, len(text)/3)
	if len(text) > 64 { // no word of allowed is a third as long
		return ""
	}
	for _, word := range allowed {
		if d := editDistance(strings.ToLower(text), word); d <= limit {
			best, limit = word, d-1
		}
	}
	return best
}

// editDistance returns the number of letters to add, drop, change or swap with their
// neighbour to turn a into b (optimal string alignment distance).
func editDistance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, above, twice := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, above[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], twice[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
