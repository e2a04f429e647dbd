package wire

// AppendText appends the presentation form of name, in its own case and with the last
// dot, to b. name is in wire form, whole and uncompressed. The characters that mean
// something in a zone file are escaped (RFC 1035, 5.1), as miekg/dns escapes them: what
// patterns in Corefiles are written for is its form.
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
			case special(c):
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

func special(c byte) bool {
	switch c {
	case '.', ' ', '\'', '@', ';', '(', ')', '"', '\\':
		return true
	}
	return false
}

// AppendName appends the wire form of text, a name in presentation form with or without
// the last dot, to b, in its own case. false, and b as it was, says that text is no name
// ([ParseName] tells why).
func AppendName(b, text []byte) (_ []byte, ok bool) {
	if len(text) == 1 && text[0] == '.' {
		return append(b, 0), true
	}
	begin, label := len(b), len(b)
	b = append(b, 0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '.' {
			if !closes(b, label) {
				return b[:begin], false
			}
			label = len(b)
			b = append(b, 0)
			continue
		}
		if c == '\\' {
			var n int
			if c, n = unescape(string(text[i+1 : min(i+4, len(text))])); n == 0 {
				return b[:begin], false
			}
			i += n
		}
		b = append(b, c)
	}
	if len(b)-label > 1 {
		if !closes(b, label) {
			return b[:begin], false
		}
		b = append(b, 0)
	}
	if n := len(b) - begin; n < 2 || n > MaxName {
		return b[:begin], false
	}
	return b, true
}

// closes writes the length of the label at its start, and reports whether it can be one.
func closes(b []byte, start int) bool {
	n := len(b) - start - 1
	if n < 1 || n > MaxLabel {
		return false
	}
	b[start] = byte(n)
	return true
}
