package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"takt/store/storetest/needs"
)

// alerts are the rules that deploy/ ships.
var alerts = filepath.Join("..", "..", "deploy", "prometheus", "alerts.yaml")

// promtool runs Prometheus' tool and returns what it says.
func promtool(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), needs.Promtool(t), args...)
	cmd.Dir, cmd.Stdin = filepath.Dir(alerts), strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// Each alert is valid, was seen firing and not firing, and says where to read on.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool(t, "", "check", "config", "prometheus.yaml")
	promtool(t, "", "check", "rules", "alerts.yaml")
	promtool(t, "", "test", "rules", "alerts_test.yaml")

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
	read(alerts, &rules)
	read(filepath.Join(filepath.Dir(alerts), "alerts_test.yaml"), &seen)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range seen.Tests {
		for _, a := range test.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Expected) > 0
			silent[a.Name] = silent[a.Name] || len(a.Expected) == 0
		}
	}
	known := anchors(t, operate)
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
