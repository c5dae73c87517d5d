package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Class is a class of work: builds that the same workers can take.
type Class struct {
	// ID is the class's number, 0 if it is not known.
	ID       int32
	Platform Platform
	// Require is the condition that a worker's labels must satisfy.
	Require Require
}

// The classes of builds without requirements for the two platforms that always exist.
const (
	IOSClass     = 1
	AndroidClass = 2
	// MaxClasses is how many classes may have pending builds.
	MaxClasses = 256
	// classReserve is how many of them the API key leaves to keys with names.
	classReserve = 32
)

// ClassShare reports whether a key may add builds of one more class while its pending builds
// are of own classes, and all pending builds of all classes. A key with a name may have as many
// as it leaves to others, so that each further key that takes what it can halves what is left;
// the API key, which is "", may have all but a reserve. The plain classes don't count as own.
func ClassShare(key string, own, all int) bool {
	if key == "" {
		return own < MaxClasses-classReserve
	}
	return own+1 <= MaxClasses-(all+1)
}

// PlainClass returns the number of the class of builds for p without requirements, 0 if it
// is not the same in each installation.
func PlainClass(p Platform) int32 {
	switch p {
	case IOS:
		return IOSClass
	case Android:
		return AndroidClass
	}
	return 0
}

// TakenBy reports whether a worker with these platforms and labels can take builds of c. A
// worker without platforms takes ios and android.
func (c *Class) TakenBy(platforms []Platform, labels Labels) bool {
	if len(platforms) == 0 && PlainClass(c.Platform) == 0 || len(platforms) > 0 && !slices.Contains(platforms, c.Platform) {
		return false
	}
	return c.Require.Match(labels)
}

// lacks returns what workers lack for builds of c: lacks says what they have in its place,
// missing does not.
func (c *Class) lacks(g *FleetGroup) (lacks, missing []string) {
	if c.lacksPlatform(g) {
		missing = append(missing, "platform "+string(c.Platform))
		lacks = append(lacks, missing...)
	}
	for i := range c.Require {
		want := &c.Require[i]
		is, has := g.Labels[want.name]
		if want.match(is, has) {
			continue
		}
		lack := want.String()
		if isFeature(want.name) {
			lack = want.feature()
		}
		missing = append(missing, lack)
		switch {
		case has && isFeature(want.name):
			lack += " (it allows " + is + " h)"
		case has && want.op != "!":
			lack += " (it has " + want.name + "=" + is + ")"
		}
		lacks = append(lacks, lack)
	}
	return lacks, missing
}

// lackSame reports whether workers that lack equally much for builds of c lack the same.
func (c *Class) lackSame(a, b *FleetGroup) bool {
	for i := range c.Require {
		want := &c.Require[i]
		is, has := a.Labels[want.name]
		other, hasToo := b.Labels[want.name]
		matches := want.match(is, has)
		if matches != want.match(other, hasToo) || !matches && want.op != "!" && is != other {
			return false
		}
	}
	return true
}

func (c *Class) lacksPlatform(g *FleetGroup) bool {
	only := Class{Platform: c.Platform}
	return !g.Takes(&only)
}

// String names c for people.
func (c *Class) String() string {
	if require := c.Require.Public(); len(require) > 0 {
		return string(c.Platform) + " with " + require.String()
	}
	return string(c.Platform)
}

// Event returns the argument of job:available for a class. The previous release
// supports only platforms and wakes no worker for other classes.
func (c *Class) Event() string {
	if c.ID == PlainClass(c.Platform) {
		return string(c.Platform)
	}
	return string(c.Platform) + " " + strconv.Itoa(int(c.ID))
}

// ClassOfEvent reads what Event returned.
func ClassOfEvent(argument string) (c Class) {
	platform, number, numbered := strings.Cut(argument, " ")
	c.Platform, c.ID = Platform(platform), PlainClass(Platform(platform))
	if n, err := strconv.ParseInt(number, 10, 32); numbered && err == nil {
		c.ID = int32(n)
	}
	return c
}

// Limits of requirements.
const (
	maxRequire    = 512 // bytes
	maxConditions = 16
	maxChoices    = 16
)

// Require is what the labels of a worker have to satisfy: all of its conditions. Empty is
// satisfied by every worker.
//
//	require   = condition { "," condition }
//	condition = name                                  the worker has the label
//	          | "!" name                              it does not have it
//	          | name ("=" | "!=" | "<" | "<=" | ">" | ">=") value
//	          | name "in" "(" value { "," value } ")"
//
// Two values that look like versions (digits and dots) are compared as versions, so that
// 16.10 is more than 16.9, and 16 is 16.0. Others are compared as text. A worker without
// the label satisfies != and ! only.
type Require []condition

type condition struct {
	name, op string // op is "", "!", "in" or a comparison
	values   []string
}

// ParseRequire reads a requirement. field names it in the error, which is InvalidArgument
// and may be shown. Nobody may require what Reserved says is the controller's.
func ParseRequire(field, text string) (Require, error) { return parseRequire(field, text, false) }

func parseRequire(field, text string, reserved bool) (Require, error) {
	fault := func(format string, args ...any) (Require, error) {
		return nil, NewError(InvalidArgument, field+": "+fmt.Sprintf(format, args...))
	}
	if len(text) > maxRequire {
		return fault("at most %d bytes", maxRequire)
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var r Require
	for _, part := range splitConditions(text) {
		c := parseCondition(strings.TrimSpace(part))
		switch {
		case !validLabelName(c.name) && (!reserved || !isFeature(c.name)):
			return fault("%q is not a condition: want name, !name, name=value (or != < <= > >=), or name in (a,b)", strings.TrimSpace(part))
		case !reserved && Reserved(c.name):
			return fault("%q: names that begin with %s are reserved", c.name, reservedPrefix)
		case len(c.values) > maxChoices:
			return fault("%q lists more than %d values", c.name, maxChoices)
		case !slices.ContainsFunc(c.values, func(v string) bool { return !validChoice(v) }):
			r = append(r, c)
		default:
			return fault("%q: a value is 1 to %d of letters, digits and _ . + - /", c.name, MaxLabelName)
		}
	}
	slices.SortFunc(r, func(a, b condition) int { return strings.Compare(a.String(), b.String()) })
	r = slices.CompactFunc(r, func(a, b condition) bool { return a.String() == b.String() })
	if len(r) > maxConditions {
		return fault("at most %d conditions", maxConditions)
	}
	return r, nil
}

// StoredRequire reads a requirement that was stored. No worker satisfies one that this
// release can't read.
func StoredRequire(text string) Require {
	r, err := parseRequire("require", text, true)
	if err != nil {
		return Require{{name: text, op: "?"}}
	}
	return r
}

// Scan reads a column of a database.
func (r *Require) Scan(column any) error {
	text, _ := column.(string)
	*r = StoredRequire(text)
	return nil
}

// splitConditions cuts text at the commas that are not in parentheses.
func splitConditions(text string) (parts []string) {
	depth, from := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth <= 0 {
				parts, from = append(parts, text[from:i]), i+1
			}
		}
	}
	return append(parts, text[from:])
}

func parseCondition(text string) condition {
	if name, ok := strings.CutPrefix(text, "!"); ok {
		return condition{name: strings.TrimSpace(name), op: "!"}
	}
	if at := strings.IndexAny(text, "=!<>"); at >= 0 {
		op := text[at : at+1]
		if at+1 < len(text) && text[at+1] == '=' && op != "=" {
			op += "="
		}
		if op == "!" {
			return condition{}
		}
		return condition{strings.TrimSpace(text[:at]), op, []string{strings.TrimSpace(text[at+len(op):])}}
	}
	head, list, isList := strings.Cut(text, "(")
	name, in := strings.CutSuffix(strings.TrimSpace(head), "in")
	if !isList {
		return condition{name: text}
	}
	list, closed := strings.CutSuffix(list, ")")
	if !in || !closed || strings.TrimRight(name, " \t") == name {
		return condition{}
	}
	c := condition{name: strings.TrimSpace(name), op: "in"}
	for v := range strings.SplitSeq(list, ",") {
		c.values = append(c.values, strings.TrimSpace(v))
	}
	slices.Sort(c.values)
	c.values = slices.Compact(c.values)
	return c
}

// validChoice reports whether v can be compared with: it has the characters of a label's
// name, and +.
func validChoice(v string) bool {
	return v != "" && len(v) <= MaxLabelName && validLabelName(strings.ReplaceAll(v, "+", "-"))
}

func (c condition) String() string {
	switch c.op {
	case "", "?":
		return c.name
	case "!":
		return "!" + c.name
	case "in":
		return c.name + " in (" + strings.Join(c.values, ",") + ")"
	}
	return c.name + c.op + c.values[0]
}

// String returns r in its only form: requirements that are written differently and mean the
// same by their grammar are one class.
func (r Require) String() string {
	texts := make([]string, len(r))
	for i, c := range r {
		texts[i] = c.String()
	}
	return strings.Join(texts, ",")
}

// Match reports whether labels satisfy r.
func (r Require) Match(labels Labels) bool {
	for i := range r {
		if is, has := labels[r[i].name]; !r[i].match(is, has) {
			return false
		}
	}
	return true
}

// match reports whether a worker satisfies c, of whose label it has this value.
func (c *condition) match(is string, has bool) bool {
	switch c.op {
	case "":
		return has
	case "!":
		return !has
	case "!=":
		return !has || compareValues(is, c.values[0]) != 0
	case "in":
		return has && slices.ContainsFunc(c.values, func(v string) bool { return compareValues(is, v) == 0 })
	case "=":
		return has && compareValues(is, c.values[0]) == 0
	case "<":
		return has && compareValues(is, c.values[0]) < 0
	case "<=":
		return has && compareValues(is, c.values[0]) <= 0
	case ">":
		return has && compareValues(is, c.values[0]) > 0
	case ">=":
		return has && compareValues(is, c.values[0]) >= 0
	}
	return false
}

// compareValues compares two versions, or else two texts.
func compareValues(a, b string) int {
	if !isVersion(a) || !isVersion(b) {
		return strings.Compare(a, b)
	}
	for a != "" || b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, ".")
		y, b, _ = strings.Cut(b, ".")
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if len(x) != len(y) {
			return len(x) - len(y)
		}
		if d := strings.Compare(x, y); d != 0 {
			return d
		}
	}
	return 0
}

// isVersion reports whether v is numbers with dots between them.
func isVersion(v string) bool {
	digit := false
	for i := range len(v) {
		switch {
		case v[i] >= '0' && v[i] <= '9':
			digit = true
		case v[i] == '.' && digit:
			digit = false
		default:
			return false
		}
	}
	return digit
}
