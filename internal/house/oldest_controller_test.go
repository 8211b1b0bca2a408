//go:build oldest

package house

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// oldestController is a server with an installation, and our program.
type oldestController struct {
	oldest
	kube    *kubernetes.Clientset
	program string
}

// TestOldestController: the controller assigns addresses, and ports that pods send from, by the rights that it is
// given. After uninstall the Service keeps its addresses, and nothing waits for a controller.
func TestOldestController(t *testing.T) {
	s := newOldestController(t)
	s.apply(t, "../../config/samples/pool.yaml")
	stop := s.run(t)
	s.create(t, "web")
	s.waitAssigned(t, "web")
	s.checkEgress(t, "web")
	stop()
	s.uninstall(t, 1)
	if left := s.slices(t); len(left) > 0 {
		t.Errorf("after uninstall pods send from %v", left)
	}
	s.deleteAll(t)
}

// TestOldestUninstallMany: 10,000 Services are let go within the Job's deadline.
func TestOldestUninstallMany(t *testing.T) {
	s := newOldestController(t)
	const many = 10_000
	var group errgroup.Group
	group.SetLimit(16)
	for i := range many {
		group.Go(func() error {
			_, err := s.kube.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(),
				service(fmt.Sprintf("many-%d", i), v1beta1.FinalizerAddress, k8s.StandardFinalizer), metav1.CreateOptions{})
			return err
		})
	}
	must(t, group.Wait())
	s.uninstall(t, many)
}

func newOldestController(t *testing.T) oldestController {
	t.Helper()
	s := oldestController{oldest: newOldest(t), program: filepath.Join(t.TempDir(), "controller")}
	s.apply(t, "../../config/uninstall/uninstall.yaml")
	if out, err := exec.Command("go", "build", "-o", s.program, "../../controller").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var err error
	s.kube, err = kubernetes.NewForConfig(s.config)
	must(t, err)
	return s
}

func service(name string, finalizers ...string) *corev1.Service {
	policy := corev1.IPFamilyPolicyPreferDualStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Finalizers: finalizers},
		// There are fewer node ports than Services.
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: &policy, Ports: []corev1.ServicePort{{Port: 80}},
			AllocateLoadBalancerNodePorts: new(bool),
		},
	}
}

func (s oldestController) create(t *testing.T, name string) {
	t.Helper()
	_, err := s.kube.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), service(name), metav1.CreateOptions{})
	must(t, err)
}

// command returns our program with the rights of an account of the installation.
func (s oldestController) command(t *testing.T, account string, args ...string) *exec.Cmd {
	t.Helper()
	access := kubeconfig(t, s.as("holdfast-system:"+account, ""))
	cmd := exec.Command(s.program, append(args, "--kubeconfig="+access)...)
	cmd.Stderr = t.Output()
	return cmd
}

// run starts the controller. The returned function ends it.
func (s oldestController) run(t *testing.T) (stop func()) {
	t.Helper()
	const anyPort = "127.0.0.1:0"
	cmd := s.command(t, "holdfast-controller", "--namespace=holdfast-system", "--metrics-listen="+anyPort,
		"--health-listen="+anyPort, "--debug-listen="+anyPort)
	must(t, cmd.Start())
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// waitAssigned waits until a Service has an address of each family, the condition that says so, and our finalizers.
func (s oldestController) waitAssigned(t *testing.T, name string) {
	t.Helper()
	var last *corev1.Service
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (done bool, err error) {
			last, err = s.kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			return err == nil && len(last.Status.LoadBalancer.Ingress) == 2 &&
				meta.IsStatusConditionTrue(last.Status.Conditions, v1beta1.ConditionAddressAssigned) &&
				slices.Contains(last.Finalizers, v1beta1.FinalizerAddress), err
		})
	if err != nil {
		t.Fatalf("%v: %+v", err, last)
	}
}

// checkEgress asks that pods send from the addresses of a Service: they get ports, which rest when the pods are gone.
func (s oldestController) checkEgress(t *testing.T, name string) {
	t.Helper()
	s.apply(t, "../../config/samples/l2advertisement.yaml")
	core := s.kube.CoreV1()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := core.ServiceAccounts(metav1.NamespaceDefault).Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			AutomountServiceAccountToken: new(bool),
		},
	}
	_, err = core.Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	ask := fmt.Sprintf(`{"metadata":{"annotations":{"holdfast.dev/egress":"true"}},"spec":{"selector":{"app":%q}}}`, name)
	_, err = core.Services(metav1.NamespaceDefault).Patch(t.Context(), name, types.MergePatchType, []byte(ask),
		metav1.PatchOptions{})
	must(t, err)

	s.waitSlices(t, "61440 n1 default", "61440 n1 default")
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			sv, err := core.Services(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			return err == nil && meta.IsStatusConditionTrue(sv.Status.Conditions, v1beta1.ConditionEgress), err
		})
	if err != nil {
		t.Errorf("the Service does not say that its pods send: %v", err)
	}

	must(t,
		core.Pods(metav1.NamespaceDefault).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	s.waitSlices(t, "61440 n1 default rests", "61440 n1 default rests")
}

// waitSlices waits until these slices are recorded, in both families.
func (s oldestController) waitSlices(t *testing.T, want ...string) {
	t.Helper()
	var last []string
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			last = s.slices(t)
			return slices.Equal(last, want), nil
		})
	if err != nil {
		t.Fatalf("pods send from %v, want %v", last, want)
	}
}

// slices returns all slices as "FIRST NODE NAMESPACE", with "rests" for a slice that rests.
func (s oldestController) slices(t *testing.T) (out []string) {
	t.Helper()
	kind := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "holdfast.dev/v1beta1", "kind": "EgressAllocation",
	}}
	list, err := resourceOf(t, s.config, kind).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, item := range list.Items {
		all, _, _ := unstructured.NestedSlice(item.Object, "status", "slices")
		for _, one := range all {
			slice := one.(map[string]any)
			text := fmt.Sprint(slice["first"], " ", slice["node"], " ", slice["namespace"])
			if slice["released"] != nil {
				text += " rests"
			}
			out = append(out, text)
		}
	}
	return out
}

// job returns the arguments of the uninstall Job, and how long it may run.
func (s oldestController) job(t *testing.T) (args []string, deadline time.Duration) {
	t.Helper()
	var job *batchv1.Job
	job, err := s.kube.BatchV1().Jobs("holdfast-system").Get(t.Context(), "holdfast-uninstall", metav1.GetOptions{})
	must(t, err)
	c := job.Spec.Template.Spec.Containers[0]
	for _, a := range append(slices.Clone(c.Command[1:]), c.Args...) {
		args = append(args, strings.ReplaceAll(a, "$(POD_NAMESPACE)", job.Namespace))
	}
	return args, time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
}

// uninstall does what the Job does. Afterwards so many Services stand, and nothing has a finalizer of ours.
func (s oldestController) uninstall(t *testing.T, services int) {
	t.Helper()
	args, deadline := s.job(t)
	cmd, start := s.command(t, "holdfast-uninstall", args...), time.Now()
	must(t, cmd.Run())
	took := time.Since(start)
	t.Logf("uninstall with %d Services took %v of %v", services, took.Round(time.Millisecond), deadline)
	// The speakers may need their --timeout before.
	if took > deadline-time.Minute {
		t.Errorf("uninstall took %v", took)
	}
	list, err := s.kube.CoreV1().Services(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	// The API server's own is there too.
	if len(list.Items) != services+1 {
		t.Errorf("%d Services, want %d", len(list.Items), services+1)
	}
	for _, sv := range list.Items {
		if len(sv.Finalizers) > 0 || sv.Name == "web" && len(sv.Status.LoadBalancer.Ingress) != 2 {
			t.Fatalf("after uninstall: %+v", sv)
		}
	}
}

// deleteAll deletes the Service that had an address and the CRDs, as a user would after uninstall: nothing waits.
func (s oldestController) deleteAll(t *testing.T) {
	t.Helper()
	must(t, s.kube.CoreV1().Services(metav1.NamespaceDefault).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	}}
	client := resourceOf(t, s.config, crd)
	must(t, client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			left, err := client.List(ctx, metav1.ListOptions{})
			return err == nil && len(left.Items) == 0, err
		})
	if err != nil {
		t.Errorf("CRDs stay: %v", err)
	}
	_, err = s.kube.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "web", metav1.GetOptions{})
	if err == nil {
		t.Error("the Service stays")
	}
}
