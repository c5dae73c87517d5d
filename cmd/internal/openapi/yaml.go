package main

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// object makes a mapping of pairs of a key and a value. Pairs whose value is nil or ""
// are left out.
func object(pairs ...any) *yaml.Node {
	o := &yaml.Node{Kind: yaml.MappingNode}
	for i := 1; i < len(pairs); i += 2 {
		set(o, fmt.Sprint(pairs[i-1]), pairs[i])
	}
	return o
}

// list makes a sequence.
func list[T any](values ...T) *yaml.Node {
	l := &yaml.Node{Kind: yaml.SequenceNode}
	for _, v := range values {
		n := node(v)
		if n == nil { // "" is a value here
			n = &yaml.Node{}
			n.SetString("")
			n.Style = yaml.SingleQuotedStyle
		}
		l.Content = append(l.Content, n)
	}
	return l
}

// set adds key to o, unless the value is nil or "".
func set(o *yaml.Node, key string, value any) {
	n := node(value)
	if n != nil && key == "description" && len(n.Value) > wide {
		n.SetString(wrap(n.Value))
		n.Style = yaml.LiteralStyle
	}
	if n != nil {
		o.Content = append(o.Content, node(key), n)
	}
}

// at returns the value of key in o, nil if there is none.
func at(o *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(o.Content); i += 2 {
		if o.Content[i].Value == key {
			return o.Content[i+1]
		}
	}
	return nil
}

func node(value any) *yaml.Node {
	switch v := value.(type) {
	case nil:
		return nil
	case *yaml.Node:
		return v
	case string:
		if v == "" {
			return nil
		}
		n := &yaml.Node{}
		n.SetString(v)
		return n
	default:
		n := &yaml.Node{}
		if err := n.Encode(v); err != nil {
			panic(err) // only plain values are passed
		}
		return n
	}
}

func ref(kind, name string) *yaml.Node { return object("$ref", "#/components/"+kind+"/"+name) }

// wide is the longest line that is not wrapped.
const wide = 100

// wrap breaks text into lines. Markdown joins them again.
func wrap(text string) string {
	var out strings.Builder
	length := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case length+1+len(word) > wide-10:
			out.WriteByte('\n')
			length = 0
		default:
			out.WriteByte(' ')
			length++
		}
		out.WriteString(word)
		length += len(word)
	}
	return out.String()
}

// flow writes what fits into one line in braces. It returns how long that is, or a large
// number if n has several lines.
func flow(n *yaml.Node) int {
	const large = 1 << 20
	if n.Kind == yaml.ScalarNode {
		if n.Style == yaml.LiteralStyle {
			return large
		}
		return len(n.Value) + 2
	}
	length := 2
	for _, child := range n.Content {
		length += flow(child) + 1
	}
	if length < wide {
		n.Style = yaml.FlowStyle
	}
	return length
}
