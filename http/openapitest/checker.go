package openapitest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Checker checks replies against an OpenAPI document.
type Checker struct {
	doc       map[string]any
	templates []template // in order of preference
	compiler  *jsonschema.Compiler
	mu        sync.Mutex
	schemas   map[string]*jsonschema.Schema // by JSON pointer
}

// template is a path of the document.
type template struct {
	path          string
	exact, greedy *regexp.Regexp
}

const resource = "openapi.json"

// Load reads a document, which must be valid OpenAPI 3.1.
func Load(ctx context.Context, document []byte) (*Checker, error) {
	parsed, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return nil, fmt.Errorf("reading the document: %w", err)
	}
	if err := parsed.Validate(ctx, openapi3.EnableSchemaFormatValidation()); err != nil {
		return nil, fmt.Errorf("checking the document: %w", err)
	}
	raw, err := json.Marshal(parsed)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	tighten(doc)
	c := &Checker{doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	c.compiler.DefaultDraft(jsonschema.Draft2020)
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource(resource, doc); err != nil {
		return nil, err
	}
	holes := regexp.MustCompile(`\\\{\w+\\\}(/|$)`)
	for path := range c.paths() {
		pattern := holes.ReplaceAllString(regexp.QuoteMeta(path), `[^/]*$1`)
		// As in the router, the last parameter takes the rest of the path. A
		// parameter named path may be several segments, or none.
		greedy := regexp.MustCompile(`\\\{\w+\\\}$`).ReplaceAllString(regexp.QuoteMeta(path), `.*`)
		greedy = regexp.MustCompile(`\\\{path\\\}/`).ReplaceAllString(greedy, `(?:.+/)?`)
		greedy = holes.ReplaceAllString(greedy, `[^/]*$1`)
		c.templates = append(c.templates, template{path, regexp.MustCompile("^" + pattern + "$"), regexp.MustCompile("^" + greedy + "$")})
	}
	slices.SortFunc(c.templates, func(a, b template) int {
		return cmp.Or(cmp.Compare(strings.Count(a.path, "{"), strings.Count(b.path, "{")), cmp.Compare(len(b.path), len(a.path)))
	})
	return c, nil
}

// tighten closes all objects. Clients ignore unknown members, but the server must
// describe all that it sends.
func tighten(node any) {
	switch node := node.(type) {
	case map[string]any:
		_, open := node["additionalProperties"]
		if _, ok := node["properties"].(map[string]any); ok && !open {
			node["additionalProperties"] = false
		}
		for _, child := range node {
			tighten(child)
		}
	case []any:
		for _, child := range node {
			tighten(child)
		}
	}
}

func (c *Checker) paths() map[string]any { return c.doc["paths"].(map[string]any) }

// operation finds the operation of a request; "" if the document has no such path.
func (c *Checker) operation(method, path string) (pointer string, op map[string]any) {
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	method = strings.ToLower(method)
	best := ""
	for _, t := range c.templates {
		if c.paths()[t.path].(map[string]any)[method] == nil {
			continue
		}
		if t.exact.MatchString(path) {
			best = t.path
			break
		}
		if len(t.path) > len(best) && t.greedy.MatchString(path) {
			best = t.path
		}
	}
	if best != "" {
		return "/paths/" + escape(best) + "/" + method, c.paths()[best].(map[string]any)[method].(map[string]any)
	}
	return "", nil
}

func escape(s string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(s) }

// Reply checks the reply to a request. It checks body if it is JSON.
func (c *Checker) Reply(method, path string, status int, header http.Header, body []byte) error {
	where := fmt.Sprintf("%s %s: %d", method, path, status)
	if method == http.MethodOptions {
		return nil
	}
	if header.Get("X-Request-Id") == "" {
		if status == http.StatusBadRequest || status == http.StatusRequestHeaderFieldsTooLarge {
			return nil // net/http itself refused the request
		}
		return fmt.Errorf("%s: no X-Request-Id", where)
	}
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && header.Get("Retry-After") == "" {
		return fmt.Errorf("%s: no Retry-After", where)
	}
	pointer, op := c.operation(method, path)
	if op == nil {
		// There is no such route: the router replied, or the check of the key did.
		if !slices.Contains([]int{401, 403, 404, 405}, status) {
			return fmt.Errorf("%s: no such operation in http/openapi.yaml", where)
		}
		return c.problem(where, method, header, body)
	}
	response, ok := op["responses"].(map[string]any)[strconv.Itoa(status)].(map[string]any)
	if !ok {
		return fmt.Errorf("%s: http/openapi.yaml does not have this status", where)
	}
	pointer += "/responses/" + strconv.Itoa(status)
	if ref, ok := response["$ref"].(string); ok {
		pointer = strings.TrimPrefix(ref, "#")
		name := ref[strings.LastIndex(ref, "/")+1:]
		response = c.doc["components"].(map[string]any)["responses"].(map[string]any)[name].(map[string]any)
	}
	return c.content(where, method, pointer, response, header, body)
}

// content checks a reply's body.
func (c *Checker) content(where, method, pointer string, response map[string]any, header http.Header, body []byte) error {
	content, _ := response["content"].(map[string]any)
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	if method == http.MethodHead || len(content) == 0 {
		if len(body) > 0 && len(content) == 0 {
			return fmt.Errorf("%s: a body, which http/openapi.yaml does not have", where)
		}
		return nil
	}
	if _, ok := content[kind].(map[string]any); !ok {
		return fmt.Errorf("%s: http/openapi.yaml does not have the content type %q", where, kind)
	}
	if !strings.HasSuffix(kind, "json") {
		return nil
	}
	return c.validate(where, pointer+"/content/"+escape(kind)+"/schema", body)
}

func (c *Checker) problem(where, method string, header http.Header, body []byte) error {
	if method == http.MethodHead {
		return nil
	}
	if kind := header.Get("Content-Type"); kind != "application/problem+json" {
		return fmt.Errorf("%s: an error of type %q", where, kind)
	}
	return c.Schema("Problem", body)
}

// Event checks the data of an event that the stream at path sends.
func (c *Checker) Event(path string, data []byte) error {
	pointer, _ := c.operation(http.MethodGet, path)
	return c.validate("event of "+path, pointer+"/responses/200/content/text~1event-stream/schema/contentSchema/items/properties/data/contentSchema", data)
}

// Schema checks JSON against a schema of the document.
func (c *Checker) Schema(name string, body []byte) error {
	return c.validate(name, "/components/schemas/"+name, body)
}

func (c *Checker) validate(where, pointer string, body []byte) error {
	schema, err := c.compile(pointer)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w: %s", where, err, body)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("%s is not as http/openapi.yaml says: %w\n%s", where, err, body)
	}
	return nil
}

func (c *Checker) compile(pointer string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.schemas[pointer]; s != nil {
		return s, nil
	}
	s, err := c.compiler.Compile(resource + "#" + strings.NewReplacer("{", "%7B", "}", "%7D").Replace(pointer))
	if err == nil {
		c.schemas[pointer] = s
	}
	return s, err
}
