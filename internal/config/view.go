package config

import (
	"strings"

	"github.com/nodens-dns/nodens/internal/expression"
)

// View is `view NAME { expr EXPRESSION }`: the block only takes queries for which all
// expressions are true. Others go to the next block of the same zone.
type View struct {
	Name string
	When []*expression.Expression // empty: all queries
}

// maxExpressions bounds the expressions of a view; each is evaluated for every query.
const maxExpressions = 32

func (v *View) parse(p *parser, s statement) {
	if p.count(s, "view NAME") {
		if v.Name = s.args()[0].text; v.Name == "" {
			p.errorf(s.args()[0], "the name is empty; is an environment variable unset?")
		}
	}
	p.body(s, opt("expr EXPRESSION…", func(args []token) {
		text := strings.Join(texts(args), " ")
		e, err := expression.Parse(text)
		switch {
		case err != nil:
			p.errorf(token{text: text, file: args[0].file, line: args[0].line}, "%q is not a boolean expression: %v", text, err)
		case len(v.When) == maxExpressions:
			p.errorf(args[0], "the view has more than %d expressions; join some by &&", maxExpressions)
		default:
			v.When = append(v.When, e)
		}
	}))
}
