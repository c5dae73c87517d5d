package postgres

import (
	"regexp"
	"strconv"
)

// numbered is a statement with named arguments (@name) whose text was translated to $1, $2 …
// once. pgx.NamedArgs would parse the text at each execution.
type numbered struct {
	sql   string
	names []string // of $1, $2 …
}

var argument = regexp.MustCompile(`@[a-z_]+`)

// number translates a statement.
func number(sql string) (n numbered) {
	numbers := map[string]string{}
	n.sql = argument.ReplaceAllStringFunc(sql, func(name string) string {
		if numbers[name] == "" {
			n.names = append(n.names, name[1:])
			numbers[name] = "$" + strconv.Itoa(len(n.names))
		}
		return numbers[name]
	})
	return n
}

// args returns the values of named in the order of the statement's arguments.
func (n numbered) args(named map[string]any) []any {
	args := make([]any, len(n.names))
	for i, name := range n.names {
		args[i] = named[name]
	}
	return args
}
