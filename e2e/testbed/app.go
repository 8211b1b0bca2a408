package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The application and the ports of its Services.
const (
	EchoImage = "lab/echo:v1"
	HTTPPort  = 80
	UDPPort   = 8081

	hostnameLabel = "kubernetes.io/hostname"
)

// App is a Deployment of the echo application.
type App struct {
	Namespace, Name string
	Replicas        int32
	// Nodes that pods may run on, spread evenly; none means all workers.
	Nodes []string
	// Patience is the failureThreshold of the readiness probe; 0 means Kubernetes' default, 3.
	Patience int32
}

// Labels select the pods of an application.
func (a App) labels() map[string]string { return map[string]string{"app": a.Name} }

// Deploy applies an application and waits until all its pods, and no others, serve.
func (b *Bed) Deploy(ctx context.Context, a App) error {
	if err := b.Scale(ctx, a); err != nil {
		return err
	}
	return Until(ctx, 2*time.Minute, "the pods of "+a.Name, func(ctx context.Context) error {
		return b.serving(ctx, a)
	})
}

// Scale applies an application, and does not wait for its pods.
func (b *Bed) Scale(ctx context.Context, a App) error {
	object, err := applyable(a.deployment(), "apps/v1", "Deployment")
	if err != nil {
		return err
	}

	force := metav1.PatchOptions{FieldManager: manager, Force: new(true)}
	_, err = b.Kube.AppsV1().Deployments(a.Namespace).Patch(ctx, a.Name, types.ApplyPatchType, object, force)
	if err != nil {
		return fmt.Errorf("deploy %s: %w", a.Name, err)
	}
	return nil
}

func (b *Bed) serving(ctx context.Context, a App) error {
	d, err := b.Kube.AppsV1().Deployments(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s := d.Status
	if s.ObservedGeneration < d.Generation ||
		s.AvailableReplicas != a.Replicas ||
		s.UpdatedReplicas != a.Replicas ||
		s.Replicas != a.Replicas {
		return fmt.Errorf("%d of %d pods are available", s.AvailableReplicas, a.Replicas)
	}
	// Terminating pods still serve for a moment, on nodes that the caller has excluded.
	pods, err := b.AppPods(ctx, a)
	if err == nil && len(pods) != int(a.Replicas) {
		err = fmt.Errorf("%d pods are there, want %d", len(pods), a.Replicas)
	}
	return err
}

// AppPods lists the pods of an application.
func (b *Bed) AppPods(ctx context.Context, a App) ([]corev1.Pod, error) {
	list, err := b.Kube.CoreV1().Pods(a.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: a.labels()}),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", a.Name, err)
	}
	return list.Items, nil
}

func (a App) deployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: &a.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: a.labels()},
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(a.Replicas)),
			}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: a.labels()},
				Spec: corev1.PodSpec{
					Containers:                    []corev1.Container{a.echo()},
					Affinity:                      a.affinity(),
					TopologySpreadConstraints:     a.spread(),
					TerminationGracePeriodSeconds: new(int64(5)),
				},
			},
		},
	}
}

func (a App) echo() corev1.Container {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{
			Name:      name,
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
		}
	}
	return corev1.Container{
		Name:            "echo",
		Image:           EchoImage,
		ImagePullPolicy: corev1.PullNever,
		Env:             []corev1.EnvVar{field("POD_NAME", "metadata.name"), field("NODE_NAME", "spec.nodeName")},
		Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 8080},
			{Name: "udp", ContainerPort: 8081, Protocol: corev1.ProtocolUDP},
		},
		// On a busy machine it must have its time, since a late answer is a lost one: by real-time priority, or where
		// that is refused by the request.
		SecurityContext: &corev1.SecurityContext{
			RunAsUser:    new(int64(0)),
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_NICE"}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")},
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)},
			},
			PeriodSeconds:    1,
			FailureThreshold: a.Patience,
		},
	}
}

// affinity keeps pods on the nodes named.
func (a App) affinity() *corev1.Affinity {
	if len(a.Nodes) == 0 {
		return nil
	}
	return &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: hostnameLabel, Operator: corev1.NodeSelectorOpIn, Values: a.Nodes},
			}}},
		}},
	}
}

// spread puts pods of one generation on different nodes, as far as there are nodes.
func (a App) spread() []corev1.TopologySpreadConstraint {
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: hostnameLabel, WhenUnsatisfiable: corev1.DoNotSchedule,
		NodeTaintsPolicy: new(corev1.NodeInclusionPolicyHonor),
		LabelSelector:    &metav1.LabelSelector{MatchLabels: a.labels()},
		MatchLabelKeys:   []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
}

// applyable returns an object as the body of a server-side apply.
func applyable(object any, version, kind string) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	delete(fields, "status")
	fields["apiVersion"], fields["kind"] = version, kind
	return json.Marshal(fields)
}

// Service returns a dual-stack Service of an application, for the caller to adjust and
// create. It has no labels and no annotations.
func Service(a App, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: a.Namespace},
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeLoadBalancer,
			Selector:       a.labels(),
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{
				{Name: "http", Port: HTTPPort, TargetPort: intstr.FromInt32(8080)},
				{Name: "udp", Port: UDPPort, TargetPort: intstr.FromInt32(8081), Protocol: corev1.ProtocolUDP},
			},
		},
	}
}

// EnsureNamespace creates a namespace unless it exists. It first waits for the end of a namespace that
// is being deleted.
func (b *Bed) EnsureNamespace(ctx context.Context, name string) error {
	namespaces := b.Kube.CoreV1().Namespaces()
	return Until(ctx, time.Minute, "namespace "+name, func(ctx context.Context) error {
		ns, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = namespaces.Create(
				ctx,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{},
			)
		case err == nil && ns.DeletionTimestamp != nil:
			err = fmt.Errorf("the former namespace is still being deleted")
		}
		return err
	})
}

// Addresses returns the addresses in a Service's status.
func Addresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// WaitAddresses waits until a Service has n addresses, and returns them, IPv4 first.
func (b *Bed) WaitAddresses(ctx context.Context, namespace, name string, n int) ([]netip.Addr, error) {
	var got []netip.Addr
	err := Until(
		ctx,
		30*time.Second,
		fmt.Sprintf("%d addresses of Service %s", n, name),
		func(ctx context.Context) error {
			s, err := b.Kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got = Addresses(s); len(got) != n {
				return fmt.Errorf("it has %v; conditions %s", got, describe(s.Status.Conditions))
			}
			return nil
		},
	)
	if len(got) == 2 && got[0].Is6() {
		got[0], got[1] = got[1], got[0]
	}
	return got, err
}

// ServiceCondition returns a condition of a Service.
func (b *Bed) ServiceCondition(ctx context.Context, namespace, name, kind string) (metav1.Condition, error) {
	s, err := b.Kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return metav1.Condition{}, err
	}
	c := meta.FindStatusCondition(s.Status.Conditions, kind)
	if c == nil {
		return metav1.Condition{}, fmt.Errorf(
			"service %s has no condition %s, only %s",
			name,
			kind,
			describe(s.Status.Conditions),
		)
	}
	return *c, nil
}

func describe(conditions []metav1.Condition) string {
	out := ""
	for _, c := range conditions {
		out += fmt.Sprintf("[%s=%s %s: %s]", c.Type, c.Status, c.Reason, c.Message)
	}
	return out
}
