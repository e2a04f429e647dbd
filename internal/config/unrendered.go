package config

import (
	"bytes"
	"errors"
	"regexp"
)

// markup matches what Helm and Jinja replace. The records of `template`, which are quoted, have such braces, too.
var markup = regexp.MustCompile(`(?m)^[^"\n]*?(\{\{-?\s*(\.(Values|Release|Chart)\b|(include|tpl|toYaml|template)\s|[a-z_][a-z0-9_.]*\s*(\||-?\}\}))|\{%-?\s*(if|for|set|endif|endfor|else|include|raw)\b)`)

// unrendered returns err, and before it that src is a template of Helm or Jinja, if it looks like one.
func unrendered(src Source, err error) error {
	at := markup.FindSubmatchIndex(src.Text)
	if at == nil {
		return err
	}
	word := string(src.Text[at[2]:at[3]])
	return errors.Join(&ParseError{
		File: src.Path, Line: 1 + bytes.Count(src.Text[:at[2]], []byte{'\n'}), Word: word,
		Text: `"` + word + `" is of a template of Helm or Jinja: render it first, such as by helm template or ansible-playbook, and use what comes out`,
	}, err)
}
