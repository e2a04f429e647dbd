package wire

// isPlainData reports whether data is valid RDATA, without pointers, of a common type that is not
// in rdataNames: one that ends in a key, a digest or a signature of any length (RFC 4034, RFC 6698,
// RFC 7344), NSEC, SVCB or HTTPS. It is false for other types.
func isPlainData(t uint16, data []byte) bool {
	switch t {
	case TypeDS, TypeDNSKEY, typeCDS, typeCDNSKEY:
		return len(data) > 4
	case TypeTLSA:
		return len(data) > 3
	case TypeRRSIG:
		return len(data) > 18 && plainName(data[18:]) > 0
	case TypeNSEC:
		n := plainName(data)
		return n > 0 && isTypeBitmap(data[n:])
	case TypeSVCB, TypeHTTPS:
		if len(data) < 3 {
			return false
		}
		n := plainName(data[2:])
		return n > 0 && areParameters(data[2+n:])
	}
	return false
}

// plainName returns the length of the name that data begins with, 0 if it is none or has a
// pointer.
func plainName(data []byte) int {
	for n := 0; n < min(len(data), MaxName); n += 1 + int(data[n]) {
		if data[n] == 0 {
			return n + 1
		}
		if data[n] > MaxLabel {
			break
		}
	}
	return 0
}

// isTypeBitmap reports whether data has the form of RFC 4034, 4.1.2.
func isTypeBitmap(data []byte) bool {
	for window := -1; len(data) > 0; {
		if len(data) < 3 || int(data[0]) <= window || data[1] == 0 || data[1] > 32 || int(data[1]) > len(data)-2 {
			return false
		}
		window, data = int(data[0]), data[2+int(data[1]):]
	}
	return true
}

// areParameters reports whether data has the form of the parameters of RFC 9460, 2.2. It does not
// read their values.
func areParameters(data []byte) bool {
	for key := -1; len(data) > 0; {
		if len(data) < 4 || int(u16(data)) <= key || int(u16(data[2:])) > len(data)-4 {
			return false
		}
		key, data = int(u16(data)), data[4+int(u16(data[2:])):]
	}
	return true
}
