package config

// ACL is `acl [ZONES…] { ACTION [type QTYPES…] [net SOURCES…] }`.
type ACL struct{}

func (x *ACL) parse(p *parser, s statement) { p.stranger(s.name()) }
