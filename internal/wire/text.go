package wire

// AppendText appends the presentation form of name, in its own case and with the trailing dot,
// to b. name is in wire form, whole and uncompressed. Characters special in zone files are
// escaped (RFC 1035, 5.1) the way miekg/dns does it, because patterns in Corefiles are written
// for that form.
func AppendText(b, name []byte) []byte {
	if len(name) < 2 {
		return append(b, '.')
	}
	for len(name) > 1 {
		n := min(int(name[0]), len(name)-1)
		for _, c := range name[1 : 1+n] {
			switch {
			case c < ' ' || c > '~':
				b = append(b, '\\', '0'+c/100, '0'+c/10%10, '0'+c%10)
			case needsEscape(c):
				b = append(b, '\\', c)
			default:
				b = append(b, c)
			}
		}
		b = append(b, '.')
		name = name[1+n:]
	}
	return b
}

func needsEscape(c byte) bool {
	switch c {
	case '.', ' ', '\'', '@', ';', '(', ')', '"', '\\':
		return true
	}
	return false
}

// AppendName appends the wire form of text, a name in presentation form with or without the
// trailing dot, to b, in its own case. If text is not a name, it returns b unchanged and false;
// [ParseName] returns the reason.
func AppendName(b, text []byte) (_ []byte, ok bool) {
	if len(text) == 1 && text[0] == '.' {
		return append(b, 0), true
	}
	begin := len(b)
	for len(text) > 0 {
		label := len(b)
		var n int
		if b, n = appendLabel(append(b, 0), text); n == 0 || !finishLabel(b, label) {
			return b[:begin], false
		}
		text = text[n:]
	}
	b = append(b, 0)
	if n := len(b) - begin; n < 2 || n > MaxName {
		return b[:begin], false
	}
	return b, true
}

// appendLabel appends the first label of text, which is not empty, to b. n is the number of
// bytes read, including the dot, or 0 if an escape is malformed.
func appendLabel(b, text []byte) (_ []byte, n int) {
	for n < len(text) {
		c := text[n]
		n++
		if c == '.' {
			break
		}
		if c == '\\' {
			var read int
			if c, read = unescape(string(text[n:min(n+3, len(text))])); read == 0 {
				return b, 0
			}
			n += read
		}
		b = append(b, c)
	}
	return b, n
}

// finishLabel writes the length of the label at its start. It returns false if the length is
// not valid.
func finishLabel(b []byte, start int) bool {
	n := len(b) - start - 1
	if n < 1 || n > MaxLabel {
		return false
	}
	b[start] = byte(n)
	return true
}
