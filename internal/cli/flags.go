package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

const (
	// groupAnnotation holds the title of a flag's group.
	groupAnnotation = "nodens_group"
	// groupFlags is the group of flags that belong to no other.
	groupFlags = "Flags"
	// GroupGeneral is the group of the flags that every command has.
	GroupGeneral = "General"
)

// Group is a list of flags with a title, for help and documents.
type Group struct {
	Title string
	Flags []*pflag.Flag
}

// SetGroup puts f into the group of that title.
func SetGroup(f *pflag.Flag, title string) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[groupAnnotation] = []string{title}
}

// Groups returns the flags that are not hidden, in the order in which they were added. The
// general flags are the last group.
func Groups(flags *pflag.FlagSet) []Group {
	var list []Group
	general := Group{Title: GroupGeneral}
	flags.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		title := groupFlags
		if t := f.Annotations[groupAnnotation]; len(t) > 0 {
			title = t[0]
		}
		if title == GroupGeneral {
			general.Flags = append(general.Flags, f)
			return
		}
		i := slices.IndexFunc(list, func(g Group) bool { return g.Title == title })
		if i < 0 {
			i, list = len(list), append(list, Group{Title: title})
		}
		list[i].Flags = append(list[i].Flags, f)
	})
	if len(general.Flags) > 0 {
		list = append(list, general)
	}
	return list
}

// ShowOnly hides all flags except the named ones. Hidden flags are still accepted.
func ShowOnly(flags *pflag.FlagSet, names ...string) {
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(names, f.Name) })
}

// value is a flag whose text a function reads. It keeps the last text.
type value struct {
	text   string
	values []string // the words to choose from; nil: any text
	set    func(string) error
}

func (v *value) String() string { return v.text }

func (v *value) Type() string { return "string" }

func (v *value) Set(text string) error {
	if err := v.set(text); err != nil {
		return err
	}
	v.text = text
	return nil
}

// Func adds a flag that set reads. byDefault is the text of the default, for help; set does
// not get it. A name in backquotes in usage is the value's name.
func Func(flags *pflag.FlagSet, name, byDefault, usage string, set func(string) error) {
	flags.Var(&value{text: byDefault, set: set}, name, usage)
}

// Enum adds a flag that takes one of values, and sets the text to it. *text is the default.
func Enum[T ~string](flags *pflag.FlagSet, text *T, name, usage string, values ...string) {
	flags.Var(newEnum(string(*text), values, func(i int) { *text = T(values[i]) }), name, usage)
}

// Choice adds a flag that takes one of values, and sets the number to its index. *number is the default.
func Choice[T ~uint8](flags *pflag.FlagSet, number *T, name, usage string, values ...string) {
	flags.Var(newEnum(values[*number], values, func(i int) { *number = T(i) }), name, usage)
}

// newEnum returns the value of a flag that calls set with the index of its text in values, which are two or more.
func newEnum(byDefault string, values []string, set func(int)) *value {
	return &value{text: byDefault, values: values, set: func(text string) error {
		i := slices.Index(values, text)
		if i < 0 {
			last := len(values) - 1
			return fmt.Errorf("give %s or %s", strings.Join(values[:last], ", "), values[last])
		}
		set(i)
		return nil
	}}
}

// ValueName returns what stands for the value of f in help, such as FILE or auto|none; "" for a
// flag without a value.
func ValueName(f *pflag.Flag) string {
	if f.Value.Type() == "bool" {
		return ""
	}
	if v, ok := f.Value.(*value); ok && v.values != nil {
		return strings.Join(v.values, "|")
	}
	name, _ := pflag.UnquoteUsage(f)
	return strings.ToUpper(name)
}

// Usage returns the usage text of f without quotes.
func Usage(f *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(f)
	return text
}

// Default returns the text of f's default, "" if there is none.
func Default(f *pflag.Flag) string {
	if f.DefValue == "[]" || f.Value.Type() == "bool" && f.DefValue == "false" {
		return ""
	}
	return f.DefValue
}
