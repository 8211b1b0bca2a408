package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/oci"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Where the chart is installed, under the names it gives by default.
const (
	Namespace  = "holdfast-system"
	Release    = "holdfast"
	Controller = "holdfast-controller"
	Speaker    = "holdfast-speaker"
)

// helmWait is how long helm waits for what it installs, or removes.
const helmWait = "3m"

// Build compiles the daemons and the programs of the outside hosts, and packs the image.
func (b *Bed) Build(ctx context.Context) error {
	if err := b.compile(ctx, "./controller", "./speaker", "./speaker/bgp", "./speaker/heartbeat", "./e2e/cmd/probe", "./e2e/cmd/whohas"); err != nil {
		return err
	}
	name, err := b.imageName()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.Path("dist"), 0o755); err != nil {
		return err
	}
	f, err := os.Create(b.imageTar())
	if err != nil {
		return err
	}
	err = oci.Write(f, oci.Image{Name: name, Files: map[string]oci.File{
		"/controller": {Source: b.Path("bin", "controller"), Mode: 0o755},
		"/speaker":    {Source: b.Path("bin", "speaker"), Mode: 0o755},
		"/heartbeat":  {Source: b.Path("bin", "heartbeat"), Mode: 0o755},
		"/bgp":        {Source: b.Path("bin", "bgp"), Mode: 0o755},
	}})
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("pack image: %w", err)
	}
	return nil
}

func (b *Bed) imageTar() string { return b.Path("dist", "holdfast.tar") }

func (b *Bed) compile(ctx context.Context, packages ...string) error {
	args := append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", b.Path("bin") + "/"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.root
	// Static: the image holds nothing else.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("compile %s: %w", strings.Join(packages, ", "), err)
	}
	return nil
}

// imageName is the image's name in the chart.
func (b *Bed) imageName() (string, error) {
	var chart struct{ AppVersion string }
	var values struct{ Image struct{ Repository string } }
	for file, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		text, err := os.ReadFile(b.Path("charts", "holdfast", file))
		if err != nil {
			return "", err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return "", fmt.Errorf("read chart: %w", err)
		}
	}
	return values.Image.Repository + ":" + chart.AppVersion, nil
}

// LoadImage loads the image on all nodes.
func (b *Bed) LoadImage(ctx context.Context) error {
	return b.Cluster.LoadImage(ctx, b.imageTar())
}

// Install installs or upgrades the chart, with further arguments for helm, and waits until
// it is ready. It resets all other values to the chart's defaults.
func (b *Bed) Install(ctx context.Context, args ...string) error {
	_, err := b.Helm(ctx, append([]string{"upgrade", "--install", Release, b.Path("charts", "holdfast"),
		"--namespace", Namespace, "--create-namespace", "--reset-values", "--wait", "--timeout", helmWait}, args...)...)
	if err != nil {
		return errors.Join(err, b.podsNotReady(ctx))
	}
	b.mapper.Reset() // the CRDs are there now
	return nil
}

// Uninstall removes the chart and waits until its pods are gone.
func (b *Bed) Uninstall(ctx context.Context) error {
	if _, err := b.Helm(ctx, "uninstall", Release, "--namespace", Namespace, "--wait", "--timeout", helmWait); err != nil {
		return err
	}
	return Until(ctx, time.Minute, "the pods to be gone", func(ctx context.Context) error {
		pods, err := b.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are there, one of them %s", len(pods.Items), pods.Items[0].Name)
		}
		return err
	})
}

// podsNotReady describes the pods of Holdfast that are not ready, with the end of their logs.
func (b *Bed) podsNotReady(ctx context.Context) error {
	pods, err := b.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if ready(p) {
			continue
		}
		lines := int64(5)
		text, err := b.Kube.CoreV1().Pods(Namespace).GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
		if err != nil {
			text = []byte(err.Error())
		}
		errs = append(errs, fmt.Errorf("pod %s on %s is %s: %s", p.Name, p.Spec.NodeName, p.Status.Phase, text))
	}
	return errors.Join(errs...)
}
