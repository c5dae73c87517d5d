package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"takt/cmd/internal/takttest"
)

// Each alert is valid, was seen firing and not firing, and says where to read on.
func TestAlerts(t *testing.T) {
	t.Parallel()
	takttest.Promtool(t, "", "check", "config", "prometheus.yaml")
	takttest.Promtool(t, "", "check", "rules", "alerts.yaml")
	takttest.Promtool(t, "", "test", "rules", "alerts_test.yaml")

	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations struct{ Summary, Runbook string }
			}
		}
	}
	var seen struct {
		Tests []struct {
			Alerts []struct {
				Name     string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	read := func(path string, to any) {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(raw, to))
	}
	read(takttest.Alerts(), &rules)
	read(filepath.Join(filepath.Dir(takttest.Alerts()), "alerts_test.yaml"), &seen)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range seen.Tests {
		for _, a := range test.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Expected) > 0
			silent[a.Name] = silent[a.Name] || len(a.Expected) == 0
		}
	}
	known := anchors(t, takttest.Operate())
	require.Len(t, rules.Groups, 1)
	for _, r := range rules.Groups[0].Rules {
		require.True(t, fires[r.Alert], "%s is not seen firing", r.Alert)
		require.True(t, silent[r.Alert], "%s is not seen silent", r.Alert)
		require.NotEmpty(t, r.Annotations.Summary, r.Alert)
		page, anchor, _ := strings.Cut(r.Annotations.Runbook, "#")
		require.Equal(t, "docs/operate.md", page, r.Alert)
		require.Contains(t, known, anchor, r.Alert)
	}
}

// anchors returns the anchors of a page's headings, as GitHub and GitLab make them.
func anchors(t *testing.T, path string) (all []string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(raw), -1) {
		text := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(text, " ", "-"))
	}
	return all
}
