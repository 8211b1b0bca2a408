package house

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// promRule is an alert, as Prometheus has it.
type promRule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type promGroup struct {
	Name  string     `json:"name"`
	Rules []promRule `json:"rules"`
}

// prometheusRule is the PrometheusRule of the chart.
type prometheusRule struct {
	Spec struct {
		Groups []promGroup `json:"groups"`
	} `json:"spec"`
}

// alerts returns the rules that the chart makes.
func alerts(t *testing.T, args ...string) prometheusRule {
	t.Helper()
	text, err := template(t,
		append([]string{"--set", "metrics.alerts.enabled=true", "-s", "templates/prometheusrule.yaml"}, args...)...)
	must(t, err)
	var rule prometheusRule
	if err := yaml.Unmarshal([]byte(text), &rule); err != nil || len(rule.Spec.Groups) != 1 {
		t.Fatalf("%d groups: %v", len(rule.Spec.Groups), err)
	}
	return rule
}

// promtool runs Prometheus' own tool on rules.
func promtool(t *testing.T, groups []promGroup, tests string, command ...string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool: run make install")
	}
	dir := t.TempDir()
	rules, err := yaml.Marshal(map[string]any{"groups": groups})
	must(t, err)
	for name, text := range map[string]string{"rules.yaml": string(rules), "test.yaml": tests} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	cmd := exec.Command(tool, command...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAlerts: each alert fires after its time and says what is wrong, and no state that is well makes one fire.
func TestAlerts(t *testing.T) {
	rule := alerts(t, "--set",
		"metrics.alerts.alertLabels.team=net,metrics.alerts.runbookURL=https://example.org/runbooks,"+
			"metrics.alerts.ignoredPools=one|two")
	promtool(t, rule.Spec.Groups, read(t, "testdata/alerts_test.yaml"), "test", "rules", "test.yaml")
}

// TestAlertsAreDisabledByName: the schema knows the names of all alerts and no other, and each name disables its alert
// alone.
func TestAlertsAreDisabledByName(t *testing.T) {
	names := func(args ...string) (out []string) {
		for _, r := range alerts(t, args...).Spec.Groups[0].Rules {
			out = append(out, r.Alert)
			if r.For == "" {
				t.Errorf("metrics.alerts.for has nothing of %s", r.Alert)
			}
		}
		return out
	}
	all := names()
	if schema := slices.Sorted(maps.Keys(disabledSchema(t))); !slices.Equal(schema, slices.Sorted(slices.Values(all))) {
		t.Errorf("the schema knows %q, the alerts are %q", schema, all)
	}
	for _, name := range all {
		want := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == name })
		if got := names("--set", "metrics.alerts.disabled."+name+"=true"); !slices.Equal(got, want) {
			t.Errorf("without %s there are %q", name, got)
		}
	}
}

// disabledSchema returns the schema of metrics.alerts.disabled by name.
func disabledSchema(t *testing.T) map[string]any {
	t.Helper()
	var schema map[string]any
	must(t, json.Unmarshal([]byte(read(t, chart+"/values.schema.json")), &schema))
	for _, name := range []string{"metrics", "alerts", "disabled"} {
		schema = schema["properties"].(map[string]any)[name].(map[string]any)
	}
	return schema["properties"].(map[string]any)
}

// TestAlertsIgnoreReasons: a reason that the operator accepts raises no alert, whatever metric has it, and other
// reasons still do.
func TestAlertsIgnoreReasons(t *testing.T) {
	rule := alerts(t, "--set", "metrics.alerts.ignoredReasons={FilterNotEnforceable,NoPool}")
	promtool(t, rule.Spec.Groups, read(t, "testdata/ignored_reasons_test.yaml"), "test", "rules", "test.yaml")
}

// TestRunbook: each alert links to a paragraph of its own, which names how to see it, and no paragraph is about another
// one.
func TestRunbook(t *testing.T) {
	page := read(t, "../../docs/runbooks.md")
	found := map[string]bool{}
	for _, r := range alerts(t).Spec.Groups[0].Rules {
		found[r.Alert] = true
		link := "https://github.com/holdfast-lb/holdfast/blob/main/docs/runbooks.md#" + strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != link {
			t.Errorf("%s links to %s", r.Alert, r.Annotations["runbook_url"])
		}
		_, paragraph, has := strings.Cut(page, "\n## "+r.Alert+"\n")
		paragraph, _, _ = strings.Cut(paragraph, "\n## ")
		if !has || !strings.Contains(paragraph, "`kubectl ") {
			t.Errorf("docs/runbooks.md does not say how to see %s", r.Alert)
		}
	}
	for _, h := range regexp.MustCompile(`(?m)^## (Holdfast.*)$`).FindAllStringSubmatch(page, -1) {
		if !found[h[1]] {
			t.Errorf("docs/runbooks.md has a paragraph about %s, which is no alert", h[1])
		}
	}
}

// TestDashboard: what the dashboard asks is correct, and of metrics that the code describes, as are the alerts. The lab
// asks it of a real Prometheus.
func TestDashboard(t *testing.T) {
	rules := alerts(t).Spec.Groups[0].Rules
	config := render(t, "--set", "metrics.dashboard.enabled=true")["ConfigMap holdfast-dashboard"].(*corev1.ConfigMap)
	if config.Labels["grafana_dashboard"] != "1" {
		t.Errorf("labels %v", config.Labels)
	}
	var board struct {
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal([]byte(config.Data["holdfast.json"]), &board))

	uses := map[string]int{"__rate_interval": 0}
	for _, v := range board.Templating.List[1:] { // the first is the data source
		uses[v.Name] = 0
		query, _ := v.Query.(map[string]any)["query"].(string)
		selector, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(query, "label_values("), ")"), ", ")
		if !ok || label != v.Name {
			t.Errorf("the variable %s asks %s", v.Name, query)
		}
		rules = append(rules, promRule{Record: "variable:x", Expr: selector})
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if _, known := uses[v[1]]; !known {
					t.Errorf("the panel %s uses %s, which is no variable", p.Title, v[0])
				}
				uses[v[1]]++
			}
			rules = append(rules, promRule{Record: "panel:x", Expr: strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")})
		}
	}
	for name, n := range uses {
		if n < 2 {
			t.Errorf("%d panels use the variable %s", n, name)
		}
	}
	if len(rules) < 60 {
		t.Errorf("%d alerts and queries", len(rules))
	}
	known := map[string]bool{}
	for _, m := range metrics(t) {
		known[m.name] = true
	}
	for i, r := range rules {
		for _, name := range regexp.MustCompile(`\bholdfast_[a-z0-9_]+`).FindAllString(r.Expr, -1) {
			if !known[name] {
				t.Errorf("%s is about %s, which no code describes", r.Expr, name)
			}
		}
		if r.Record != "" { // of the same name in one group is an error
			rules[i].Record += strings.Repeat("x", i)
		}
	}
	promtool(t, []promGroup{{Name: "all", Rules: rules}}, "", "check", "rules", "rules.yaml")
}
