// Package addrhash hashes client addresses for the tables that a query touches.
package addrhash

import (
	"encoding/binary"
	"math/bits"
)

// Sum returns the hash of an address in its 16-byte form: the folded product of its halves, which the random seed hides,
// mixed so that neighbouring addresses are spread. It is cheaper than package maphash's.
func Sum(seed *[2]uint64, addr *[16]byte) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(addr[:8])^seed[0], binary.LittleEndian.Uint64(addr[8:])^seed[1])
	h := hi ^ lo
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15 // the golden ratio, as in Fibonacci hashing
	return h ^ h>>29
}
