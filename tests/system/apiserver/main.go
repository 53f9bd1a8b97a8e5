// Command apiserver runs a real Kubernetes API server, the etcd it stores to and
// the real EndpointSlice controller in one process, for tests of API clients.
// There is no kubelet, scheduler, garbage collector or other controller: a test
// creates Nodes, Services and Pods and patches pod status itself.
//
// It prints "ready" and its URL, and leaves a kubeconfig and the administrator's
// token in its data directory. It ends on SIGTERM, and when its standard input
// ends, so that it never outlives the test that started it.
//
// Arguments after the flags are kube-apiserver flags and override the ones set
// here, for example: apiserver --data-dir d -- --watch-cache=false -v=4
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

const (
	tokenFile    = "tokens.csv"
	readyTimeout = 2 * time.Minute
	// The account that the bootstrap RBAC policy binds to the controller's role.
	controllerUser = "system:serviceaccount:kube-system:endpointslice-controller"
	// The defaults of kube-controller-manager.
	controllerQPS, controllerBurst, controllerWorkers, maxEndpointsPerSlice = 20, 30, 5, 100
)

type settings struct {
	dataDir, listen, advertise, authorization string
	securePort                                int
}

func main() {
	var s settings
	flag.StringVar(&s.dataDir, "data-dir", "data", "directory for etcd, keys, the token and the kubeconfig")
	flag.StringVar(&s.listen, "listen", "127.0.0.1", "IP address the API server listens on")
	flag.StringVar(&s.advertise, "advertise", "", "IP address that clients use and the certificate names; default: the one of --listen")
	flag.IntVar(&s.securePort, "secure-port", 0, "port of the API server; 0 takes a free one")
	flag.StringVar(&s.authorization, "authorization", "RBAC", "authorization mode: RBAC or AlwaysAllow")
	flag.Parse()
	if s.advertise == "" {
		s.advertise = s.listen
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go stopAtEndOfInput()
	if err := run(ctx, s, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

// stopAtEndOfInput waits until the process at the other end of standard input has
// closed it or died; then it asks this one to end, and enforces it.
func stopAtEndOfInput() {
	io.Copy(io.Discard, os.Stdin)
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
	time.Sleep(10 * time.Second)
	os.Exit(1)
}

// run serves until ctx ends; it fails when any part fails to start.
func run(ctx context.Context, s settings, apiArgs []string) error {
	dir, err := filepath.Abs(s.dataDir)
	if err != nil {
		return err
	}
	etcd, err := startEtcd(dir)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer etcd.Close()
	token, err := adminToken(dir)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(s.listen, strconv.Itoa(s.securePort)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts, err := apiServerOptions(ctx, s, dir, listener, apiArgs)
	if err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	admin, err := writeKubeconfig(dir, s, listener, token)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		served <- app.Run(ctx, opts)
		cancel()
	}()
	if err = startController(ctx, admin); err != nil {
		cancel()
	} else {
		fmt.Println("ready", admin.Host)
	}
	return errors.Join(err, <-served)
}

// startEtcd starts a one-member etcd on unix sockets in dir, where nothing else
// reaches it. It never syncs to disk: the data outlives the process, but not a
// crash of the machine.
func startEtcd(dir string) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	client := []url.URL{{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}}
	peer := []url.URL{{Scheme: "unix", Path: filepath.Join(dir, "peer.sock")}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.WatchProgressNotifyInterval = 5 * time.Second // as kubeadm: keeps bookmarks fresh
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "error"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err = <-etcd.Err():
		etcd.Close()
		return nil, err
	}
}

// apiServerOptions returns the completed options of an API server that serves
// on listener and keeps its files in dir.
func apiServerOptions(ctx context.Context, s settings, dir string, listener net.Listener, extra []string) (completed apioptions.CompletedOptions, err error) {
	pki := filepath.Join(dir, "pki")
	accountKey := filepath.Join(pki, "apiserver.key") // the serving key, made on completion
	opts := apioptions.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range opts.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	if err := errors.Join(flags.Parse(append([]string{
		"--advertise-address=" + s.advertise, // else it is looked up from the default route
		"--cert-dir=" + pki,
		"--etcd-servers=unix://" + filepath.Join(dir, "etcd.sock"),
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		"--endpoint-reconciler-type=none",
		"--anonymous-auth=false",
		"--token-auth-file=" + filepath.Join(dir, tokenFile),
		"--authorization-mode=" + s.authorization,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + accountKey,
		"--service-account-signing-key-file=" + accountKey,
		"--disable-admission-plugins=ServiceAccount",   // no controller makes the accounts
		"--shutdown-watch-termination-grace-period=1s", // else open watches hold up the stop for 60 s
	}, extra...)),
		opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(),
		logsapi.ValidateAndApply(opts.Logs, utilfeature.DefaultFeatureGate),
	); err != nil {
		return completed, err
	}
	if completed, err = opts.Complete(ctx); err != nil {
		return completed, err
	}
	return completed, utilerrors.NewAggregate(completed.Validate())
}

// waitReady waits for /readyz and for the Service that the server itself makes
// in the default namespace, which shows that cluster IPs can be allocated.
func waitReady(ctx context.Context, client *kubernetes.Clientset) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() != nil {
			return false, nil
		}
		_, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err == nil, nil
	})
}

// startController waits for the API server, starts the EndpointSlice controller,
// which runs until ctx ends, and returns once its informers have synced.
func startController(ctx context.Context, admin *rest.Config) error {
	if err := waitReady(ctx, kubernetes.NewForConfigOrDie(admin)); err != nil {
		return err
	}
	config := rest.CopyConfig(admin)
	config.Impersonate.UserName = controllerUser
	config.ContentType = runtime.ContentTypeProtobuf
	config.QPS, config.Burst = controllerQPS, controllerBurst
	client := kubernetes.NewForConfigOrDie(config)
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	controller := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		factory.Discovery().V1().EndpointSlices(), maxEndpointsPerSlice, client, 0)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go controller.Run(ctx, controllerWorkers)
	return ctx.Err()
}

// adminToken returns the token of the token file in dir, made the first time.
func adminToken(dir string) (string, error) {
	path := filepath.Join(dir, tokenFile)
	line, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		line = []byte(rand.Text() + ",admin,admin,system:masters\n")
		err = os.WriteFile(path, line, 0o600)
	}
	token, _, _ := strings.Cut(string(line), ",")
	return token, err
}

// writeKubeconfig writes dir/kubeconfig for the administrator and returns the
// same as a client configuration. The server's certificate must be in dir.
func writeKubeconfig(dir string, s settings, listener net.Listener, token string) (*rest.Config, error) {
	ca, err := os.ReadFile(filepath.Join(dir, "pki", "apiserver.crt"))
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server: "https://" + net.JoinHostPort(s.advertise, port), CertificateAuthorityData: ca,
	}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin", Namespace: "default"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, filepath.Join(dir, "kubeconfig")); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
}
